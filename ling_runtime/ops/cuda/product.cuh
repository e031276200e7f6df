// Dense products of few rows, and the same with a norm by head folded in.

#pragma once

#include "share.cuh"

namespace stream {

constexpr int MOST_PARTS = 32;  // of a head's squares

struct Product {
    const bf16* x;         // [rows, stride]
    const bf16* weight;    // [outputs, inner]
    bf16* out;             // [rows, outputs]
    const float* squares;  // [rows, WARPS, parts] or null: a warp's slice is a head, whose norm scales its sum
    int rows, real, stride, outputs, parts, pdl;
    float eps;
};

// One over the root of the mean of a row's squares in this warp's head. Four lanes have the row, and a quarter of the
// parts each, all asked for at once: one after the other they would be as many trips to the cache.
__device__ __forceinline__ float factor(const float* squares, int parts, bool known, int width, float eps,
                                        int quarter) {
    float part[MOST_PARTS / 4], total = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 4; i++)
        part[i] = known && i * 4 + quarter < parts ? __ldcg(squares + i * 4 + quarter) : 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 4; i++) total += part[i];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    return rsqrtf(total / width + eps);
}

// Rows from `begin` on: a warp's part of their sums.
template <int STEPS, int NT, int HALVES>
__device__ __forceinline__ void part_of(float (&sums)[NT][4], const Product& p, const Share<bf16, STEPS, NT>& weights,
                                        int begin, int warp, int lane) {
    const int group = lane >> 2, quarter = lane & 3, real = min(TILE, p.real - begin);
    uint4 x[HALVES][STEPS];
    const bf16* at = p.x + static_cast<size_t>(begin + group) * p.stride + warp * (STEPS * 32) + quarter * 8;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            x[half][step] = cached(at + half * 8 * p.stride + step * 32, group + half * 8 < real);
    float scale[2] = {1.0f, 1.0f};
    if (p.squares != nullptr) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const int row = group + 8 * half;
            const float* squares = p.squares + (static_cast<size_t>(begin + row) * WARPS + warp) * p.parts;
            scale[half] = factor(squares, p.parts, row < real, STEPS * 32, p.eps, quarter);
        }
    }
    if (begin == 0) weights.wait();
    weights.multiply_rows(sums, x, lane);
    // Rounded here in every tile of rows: the sum over warps must not fuse it away where it stands close by.
#pragma unroll
    for (int tile = 0; tile < NT; tile++)
#pragma unroll
        for (int place = 0; place < 2 * HALVES; place++)
            sums[tile][place] = __fmul_rn(sums[tile][place], scale[place / 2]);
}

template <int STEPS, int NT, int HALVES>
__global__ void __launch_bounds__(WARPS * 32, 1) product(Product p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t arrived[WARPS];
    constexpr int INNER = STEPS * 32 * WARPS, COLUMNS = NT * 8;
    __shared__ __align__(8) float turns[HALVES == 2 ? TILE * COLUMNS : 1];
    using Columns = Share<bf16, STEPS, NT>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int first = blockIdx.x * COLUMNS, count = min(COLUMNS, p.outputs - first);
    Columns weights(shared, arrived, warp);
    weights.ask(p.weight + static_cast<size_t>(first) * INNER + warp * (STEPS * 32), count, INNER, lane);
    depend(p.pdl);
    const int end_of_rows = HALVES == 1 ? 1 : p.rows;  // one tile: no loop
    for (int begin = 0; begin < end_of_rows; begin += TILE) {
        const int rows = min(TILE, p.rows - begin);
        float sums[NT][4] = {};
        part_of<STEPS, NT, HALVES>(sums, p, weights, begin, warp, lane);
        // Weights stay for the tiles to come; only the last tile's sums may take their place.
        const bool last = HALVES == 1 || begin + TILE >= p.rows;
        if (last) {
            weights.leave(sums, rows, lane);
        } else {
            for (int turn = 0; turn < WARPS; turn++) {
                if (warp == turn) Columns::put(sums, turns, rows, lane, turn > 0);
                __syncthreads();
            }
        }
        __syncthreads();
        for (int place = threadIdx.x; place < rows * COLUMNS; place += WARPS * 32) {
            const int row = place / COLUMNS, column = place % COLUMNS;
            if (column < count)
                p.out[static_cast<size_t>(begin + row) * p.outputs + first + column] =
                    __float2bfloat16_rn(last ? Columns::added(shared, place) : turns[place]);
        }
        if (!last) __syncthreads();
    }
    end(p.pdl);
}

template <int STEPS, int NT>
int launch_product(const Product& p, cudaStream_t stream) {
    const dim3 grid((p.outputs + NT * 8 - 1) / (NT * 8));
    constexpr int shared = WARPS * Share<bf16, STEPS, NT>::SIZE;
    if (p.rows <= 8) return launch(product<STEPS, NT, 1>, grid, shared, p.pdl, stream, p);
    return launch(product<STEPS, NT, 2>, grid, shared, p.pdl, stream, p);
}

}  // namespace stream
