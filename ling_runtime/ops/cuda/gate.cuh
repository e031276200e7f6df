// The router's gate with the residual added in front, for gate weights in bf16 or fp32.

#pragma once

#include "share.cuh"

namespace stream {

template <typename T>
struct Gate {
    const bf16 *x, *residual, *norm;  // [rows, inner] twice, [inner]
    const T* gate;                    // [experts, inner]
    float *sums, *squares;            // [rows, experts], [rows]
    bf16* total;                      // [rows, inner]
    int rows, experts, pdl;
};

// Sixteen bytes before the wait, asked for where this stands: a load that the compiler knew to be of constant memory
// (`.nc`, __ldg) it would move behind the wait, to where its value is used. From L2, where what other kernels have
// written is; this multiprocessor's own cache may have what was there before.
__device__ __forceinline__ uint4 early(const bf16* at) {
    uint4 value;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint32_t sum_of(uint32_t a, uint32_t b) {
    const float2 one = wide(a), two = wide(b);
    return narrow({one.x + two.x, one.y + two.y});
}

__device__ __forceinline__ uint4 sum_of(uint4 a, uint4 b) {
    return {sum_of(a.x, b.x), sum_of(a.y, b.y), sum_of(a.z, b.z), sum_of(a.w, b.w)};
}

// The new residual's pair times the norm's weight, its squares added up.
__device__ __forceinline__ uint32_t weighed(uint32_t pair, uint32_t weight, float& squares) {
    const float2 value = wide(pair), factor = wide(weight);
    squares += value.x * value.x;
    squares += value.y * value.y;
    return narrow({value.x * factor.x, value.y * factor.y});
}

__device__ __forceinline__ uint4 weighed(uint4 four, uint4 weight, float& squares) {
    return {weighed(four.x, weight.x, squares), weighed(four.y, weight.y, squares), weighed(four.z, weight.z, squares),
            weighed(four.w, weight.w, squares)};
}

// Eight experts a program: ((x + residual) * norm) @ gate^T without the norm's factor, whose squares lie beside it.
template <typename T, int STEPS, int HALVES>
__global__ void __launch_bounds__(WARPS * 32, 1) gated(Gate<T> p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t arrived[WARPS];
    __shared__ float squared[WARPS][TILE];
    __shared__ uint4 norm[WARPS][STEPS * 4];
    constexpr int INNER = STEPS * 32 * WARPS;
    using Experts = Share<T, STEPS, 1>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quarter = lane & 3;
    const int first = blockIdx.x * 8, begin = blockIdx.y * TILE, rows = min(TILE, p.rows - begin);
    Experts weights(shared, arrived, warp);
    const T* slice = p.gate + static_cast<size_t>(first) * INNER + warp * (STEPS * 32);
    weights.ask(slice, min(8, p.experts - first), INNER, lane);
    const int place = warp * (STEPS * 32) + quarter * 8;
    uint32_t mine = 0;  // steps whose 64 bytes of each row's sum are this program's to keep
    for (int step = 0; step < STEPS; step++)
        mine |= static_cast<uint32_t>((warp * STEPS + step) % gridDim.x == blockIdx.x) << step;
    const size_t at = static_cast<size_t>(begin + group) * INNER + place;
    // Attention stands between the residual and this kernel: what wrote it has ended, and it is in L2.
    uint4 x[HALVES][STEPS], residual[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        residual[step] = group < rows ? early(p.residual + at + step * 32) : uint4{0, 0, 0, 0};
    for (int piece = lane; piece < STEPS * 4; piece += 32)
        norm[warp][piece] = early(p.norm + warp * (STEPS * 32) + piece * 8);
    __syncwarp();
    depend(p.pdl);
    float sums[1][4] = {};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const bool known = group + half * 8 < rows;
        float own = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) x[half][step] = cached(p.x + at + half * 8 * INNER + step * 32, known);
        if (half == 1) {
#pragma unroll
            for (int step = 0; step < STEPS; step++)
                residual[step] = cached(p.residual + at + 8 * INNER + step * 32, known);
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const uint4 sum = sum_of(x[half][step], residual[step]);
            if (known && mine >> step & 1)
                *reinterpret_cast<uint4*>(p.total + at + half * 8 * INNER + step * 32) = sum;
            x[half][step] = weighed(sum, norm[warp][step * 4 + quarter], own);
        }
        own += __shfl_xor_sync(~0u, own, 1);
        own += __shfl_xor_sync(~0u, own, 2);
        if (quarter == 0) squared[warp][group + half * 8] = own;
    }
    weights.wait();
    weights.multiply_rows(sums, x, lane);
    weights.leave(sums, rows, lane);
    __syncthreads();
    if (threadIdx.x < rows * 8) {
        const int row = threadIdx.x / 8, column = first + threadIdx.x % 8;
        if (column < p.experts)
            p.sums[static_cast<size_t>(begin + row) * p.experts + column] = Experts::added(shared, threadIdx.x);
    }
    if (blockIdx.x == 0 && threadIdx.x < rows) {
        float total = squared[0][threadIdx.x];
        for (int other = 1; other < WARPS; other++) total += squared[other][threadIdx.x];
        p.squares[begin + threadIdx.x] = total;
    }
    end(p.pdl);
}

template <typename T, int STEPS>
int launch_gate(const Gate<T>& p, cudaStream_t stream) {
    const dim3 grid((p.experts + 7) / 8, (p.rows + TILE - 1) / TILE);
    constexpr int shared = WARPS * Share<T, STEPS, 1>::SIZE;
    if (p.rows <= 8) return launch(gated<T, STEPS, 1>, grid, shared, p.pdl, stream, p);
    return launch(gated<T, STEPS, 2>, grid, shared, p.pdl, stream, p);
}

}  // namespace stream
