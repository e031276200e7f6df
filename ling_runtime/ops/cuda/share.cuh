// A warp's share of weights: asked for before the wait, multiplied behind it.
//
// Weights depend on nothing, so a program asks for its share of them before it waits for the kernel in front of it
// (programmatic dependent launch), and memory is busy while that one is still adding, storing and ending. Shares come
// by bulk copies into shared memory; held in registers they were slower, since nothing starts beside a kernel that
// fills the register file (docs/gpu_switches.md). The order of every sum is fixed: K is cut into one slice a warp, a
// slice is summed front to back, slices are added in order. Rows are rows of 16-row tiles, so a row's bits do not
// depend on how many there are.

#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace stream {

using bf16 = __nv_bfloat16;

constexpr int WARPS = 8;
constexpr int TILE = 16;
constexpr int LATE = 1, EARLY = 2;  // positions of ops/triton/launch.py

// One slice of K of T in shared memory: STEPS blocks of 32. Rows lie in pairs, an odd one off by as much as makes the
// eight lanes that read 16 bytes of two neighbouring rows at once meet all 32 banks: in bf16 four of them read 64 bytes
// on end, in fp32 every second 16 of 128.
template <typename T, int STEPS>
struct Slice {
    static constexpr int BLOCK = 32 * sizeof(T);
    static constexpr int BYTES = BLOCK * STEPS;
    static constexpr int OFF = sizeof(T) == 2 ? 64 : 16;
    static constexpr int ODD = BYTES + (OFF + 128 - BYTES % 128) % 128;
    static constexpr int PAIR = ODD + BYTES;
    static __device__ constexpr int at(int row) { return (row >> 1) * PAIR + (row & 1) * ODD; }
    static __host__ __device__ constexpr int whole(int columns) { return (columns / 2) * PAIR; }
};

__device__ __forceinline__ uint32_t address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void depend(int pdl) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (pdl == EARLY) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void end(int pdl) {
    if (pdl == LATE) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// `arrived` will complete when `bytes` have been copied.
__device__ __forceinline__ void expect(uint64_t* arrived, int bytes, int lane) {
    if (lane == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(arrived)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(arrived)), "r"(bytes)
                     : "memory");
    }
    __syncwarp();
}

__device__ __forceinline__ void copy(char* to, const void* from, int bytes, uint64_t* arrived) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(to)),
                 "l"(from), "r"(bytes), "r"(address(arrived))
                 : "memory");
}

__device__ __forceinline__ void arrive(uint64_t* arrived) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], 0;\n"
        "@there bra done;\n"
        "bra again;\n"
        "done:\n"
        "}\n" ::"r"(address(arrived))
        : "memory");
}

__device__ __forceinline__ void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A lane holds 8 neighbouring elements of a block of 32, of its row and of its row + 8: in the tensor core's two
// products of 16 they are other places of K than they are in memory, but the same ones for rows and weights.
__device__ __forceinline__ void multiply(float (&sum)[4], const uint4& low, const uint4& high, const uint4& weights) {
    multiply(sum, low.x, high.x, low.y, high.y, weights.x, weights.y);
    multiply(sum, low.z, high.z, low.w, high.w, weights.z, weights.w);
}

__device__ __forceinline__ float2 wide(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

__device__ __forceinline__ uint32_t narrow(float2 pair) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(pair.x, pair.y);
    return *reinterpret_cast<const uint32_t*>(&two);
}

// The third of its bits that bf16 has room for; `pair` keeps the rest, exactly.
__device__ __forceinline__ uint32_t taken(float2& pair) {
    const uint32_t part = narrow(pair);
    const float2 value = wide(part);
    pair.x -= value.x, pair.y -= value.y;
    return part;
}

// Weights in fp32 as three in bf16, each of whose products with rows is exact; the least is added first.
__device__ __forceinline__ void multiply(float (&sum)[4], const uint4& low, const uint4& high,
                                         const float2 (&weights)[4]) {
    float2 rest[4] = {weights[0], weights[1], weights[2], weights[3]};
    uint4 third[3];
#pragma unroll
    for (int part = 2; part >= 0; part--)
        third[part] = {taken(rest[0]), taken(rest[1]), taken(rest[2]), taken(rest[3])};
#pragma unroll
    for (int part = 0; part < 3; part++) multiply(sum, low, high, third[part]);
}

// The slices of `count` weight rows of K `inner`, of which each warp asks for its own.
template <typename T, int STEPS, int NT>
struct Share {
    using S = Slice<T, STEPS>;
    static constexpr int SIZE = S::whole(NT * 8);  // bytes of shared memory a warp
    char* slice;
    uint64_t* arrived;

    __device__ __forceinline__ Share(char* shared, uint64_t* barriers, int warp)
        : slice(shared + warp * SIZE), arrived(barriers + warp) {}

    __device__ __forceinline__ void ask(const T* weight, int count, int inner, int lane) {
        expect(arrived, count * S::BYTES, lane);
        for (int row = lane; row < count; row += 32)
            copy(slice + S::at(row), weight + static_cast<size_t>(row) * inner, S::BYTES, arrived);
    }

    __device__ __forceinline__ void add(float (&sum)[4], int tile, int step, const uint4& low, const uint4& high,
                                        int lane) const {
        const char* at = slice + S::at(tile * 8 + (lane >> 2)) + step * S::BLOCK + (lane & 3) * (S::BLOCK / 4);
        if constexpr (sizeof(T) == 2) {
            multiply(sum, low, high, *reinterpret_cast<const uint4*>(at));
        } else {
            const float4 a = *reinterpret_cast<const float4*>(at), b = *reinterpret_cast<const float4*>(at + 16);
            const float2 weights[4] = {{a.x, a.y}, {a.z, a.w}, {b.x, b.y}, {b.z, b.w}};
            multiply(sum, low, high, weights);
        }
    }

    __device__ __forceinline__ void wait() const { arrive(arrived); }

    // Products with rows, behind `wait`.
    template <int HALVES>
    __device__ __forceinline__ void multiply_rows(float (&sums)[NT][4], const uint4 (&rows)[HALVES][STEPS],
                                                  int lane) const {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int tile = 0; tile < NT; tile++) {
                const uint4 high = HALVES == 2 ? rows[HALVES - 1][step] : uint4{0, 0, 0, 0};
                add(sums[tile], tile, step, rows[0][step], high, lane);
            }
    }

    // A warp's sums to [rows][columns], in the place of what is there or on top of it.
    static __device__ __forceinline__ void put(const float (&sums)[NT][4], float* to, int rows, int lane, bool onto) {
        const int group = lane >> 2, quarter = lane & 3;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int tile = 0; tile < NT; tile++) {
                if (group + half * 8 >= rows) continue;
                float2* at = reinterpret_cast<float2*>(to + (group + half * 8) * NT * 8 + tile * 8 + quarter * 2);
                const float2 own = {sums[tile][half * 2], sums[tile][half * 2 + 1]};
                const float2 before = onto ? *at : float2{0.0f, 0.0f};
                *at = onto ? float2{before.x + own.x, before.y + own.y} : own;
            }
    }

    // Into the warp's own slice, which nobody reads any more; a barrier comes before `added`.
    __device__ __forceinline__ void leave(const float (&sums)[NT][4], int rows, int lane) {
        __syncwarp();
        put(sums, reinterpret_cast<float*>(slice), rows, lane, false);
    }

    static __device__ __forceinline__ float added(const char* shared, int place) {
        float total = reinterpret_cast<const float*>(shared)[place];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++) total += reinterpret_cast<const float*>(shared + warp * SIZE)[place];
        return total;
    }
};

__device__ __forceinline__ uint4 cached(const bf16* at, bool known) {
    return known ? __ldcg(reinterpret_cast<const uint4*>(at)) : uint4{0, 0, 0, 0};
}

// Error of the runtime, or 0.
template <typename Kernel, typename Arguments>
int launch(Kernel kernel, dim3 grid, int shared, int pdl, cudaStream_t stream, Arguments arguments) {
    // As all of Triton's (ops/triton/carveout.py): programs of two kernels run side by side on a multiprocessor only
    // where both divide its memory the same way.
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(WARPS * 32);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments);
}

}  // namespace stream
