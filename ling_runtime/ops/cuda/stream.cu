// Products of few rows with weights that are on their way before the rows are there.
//
// A program asks for its share of the weights before it waits for the kernel in front of it (programmatic dependent
// launch). Weights depend on nothing, so memory is busy while that kernel is still adding, storing and ending; what is
// left behind the wait is one read of the rows from the cache, the tensor cores, and a sum over warps. A small share is
// held in registers, which start beside any kernel; a large one comes by bulk copies into shared memory. The order of
// every sum is fixed and the same in both: K is cut into one slice a warp, a slice is summed front to back, slices are
// added in order. Rows are rows of 16-row tiles, so a row's bits do not depend on how many there are.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace stream {

constexpr int WARPS = 8;
constexpr int TILE = 16;
constexpr int LARGE = 32 << 10;        // bytes of shared memory
constexpr int MOST_HELD = 18;         // 16 bytes a lane
constexpr int MOST_PARTS = 32;        // of a head's squares
constexpr int LATE = 1, EARLY = 2;    // positions of ops/triton/launch.py; those above are early, too

// One slice of K in shared memory: STEPS blocks of 32. Rows of weights lie in pairs, an odd one 64 bytes off, so that the eight lanes
// that read 16 bytes of two neighbouring rows at once meet all 32 banks.
template <int STEPS>
struct Slice {
    static constexpr int BYTES = 64 * STEPS;
    static constexpr int ODD = 64 * (STEPS | 1);
    static constexpr int PAIR = ODD + BYTES;
    static __host__ __device__ constexpr int at(int row) { return (row >> 1) * PAIR + (row & 1) * ODD; }
    static __host__ __device__ constexpr int whole(int columns) { return (columns / 2) * PAIR; }
};

__device__ __forceinline__ uint32_t address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void depend(int pdl) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (pdl >= EARLY) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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

__device__ __forceinline__ void copy(char* to, const __nv_bfloat16* from, int bytes, uint64_t* arrived) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(to)),
                 "l"(from), "r"(bytes), "r"(address(arrived))
                 : "memory");
}

// A warp's slice of weight rows from .. to, asked for; `weight` is where its slice of row 0 begins. With a gap, a row
// every so many clocks: what the kernel in front still reads does not have to queue behind all of them.
template <int STEPS>
__device__ __forceinline__ void ask(char* slice, uint64_t* arrived, const __nv_bfloat16* weight, int from, int to,
                                    int inner, int gap, int lane) {
    using S = Slice<STEPS>;
    if (gap == 0) {
        for (int row = from + lane; row < to; row += 32)
            copy(slice + S::at(row), weight + static_cast<size_t>(row) * inner, S::BYTES, arrived);
        return;
    }
    const clock_t start = clock();
    for (int row = from; row < to; row++) {
        while (static_cast<int>(clock() - start) < (row - from) * gap) {
        }
        if (lane == 0) copy(slice + S::at(row), weight + static_cast<size_t>(row) * inner, S::BYTES, arrived);
    }
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

// Sixteen bytes that are read once, asked for where this stands: a load that the compiler knew to be of constant memory
// (`.nc`, __ldg) it would move behind the wait, to where its value is used.
__device__ __forceinline__ uint4 once(const __nv_bfloat16* at) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

// A lane's weights of eights of columns `tile` and blocks of 32 `step`: from shared memory when they are multiplied, or
// from registers, which a share of a few kilobytes a warp fits into.
template <int STEPS, int NT, bool HELD>
struct Weights;

template <int STEPS, int NT>
struct Weights<STEPS, NT, false> {
    static constexpr int SIZE = Slice<STEPS>::whole(NT * 8);  // bytes of shared memory a warp
    char* slice;
    __device__ __forceinline__ void begin(const __nv_bfloat16* weight, int count, int inner, char* own,
                                          uint64_t* arrived, int before, int gap, int lane) {
        slice = own;
        expect(arrived, count * Slice<STEPS>::BYTES, lane);
        ask<STEPS>(slice, arrived, weight, 0, min(before, count), inner, gap, lane);
    }
    __device__ __forceinline__ void finish(const __nv_bfloat16* weight, int count, int inner, uint64_t* arrived,
                                           int before, int lane) {
        ask<STEPS>(slice, arrived, weight, min(before, count), count, inner, 0, lane);
    }
    __device__ __forceinline__ void wait(uint64_t* arrived) { arrive(arrived); }
    __device__ __forceinline__ uint4 at(int tile, int step, int lane) const {
        return *reinterpret_cast<const uint4*>(slice + Slice<STEPS>::at(tile * 8 + (lane >> 2)) + step * 64 +
                                               (lane & 3) * 16);
    }
};

template <int STEPS, int NT>
struct Weights<STEPS, NT, true> {
    static constexpr int SIZE = TILE * NT * 8 * static_cast<int>(sizeof(float));  // for the sums alone
    uint4 held[NT][STEPS];
    __device__ __forceinline__ void begin(const __nv_bfloat16* weight, int count, int inner, char*, uint64_t*, int,
                                          int, int lane) {
#pragma unroll
        for (int tile = 0; tile < NT; tile++) {  // a row past the end is the last one again, and is not stored
            const __nv_bfloat16* row = weight + static_cast<size_t>(min(tile * 8 + (lane >> 2), count - 1)) * inner;
#pragma unroll
            for (int step = 0; step < STEPS; step++) held[tile][step] = once(row + step * 32 + (lane & 3) * 8);
        }
    }
    __device__ __forceinline__ void finish(const __nv_bfloat16*, int, int, uint64_t*, int, int) {}
    __device__ __forceinline__ void wait(uint64_t*) {}
    __device__ __forceinline__ uint4 at(int tile, int step, int) const { return held[tile][step]; }
};

// A lane holds 8 neighbouring elements of a block of 32, of its row and of its row + 8: in the tensor core's two
// products of 16 they are other places of K than they are in memory, but the same ones for rows and weights.
template <int STEPS, int NT, int HALVES, bool HELD>
__device__ __forceinline__ void products(float (&sums)[NT][4], const uint4 (&rows)[HALVES][STEPS],
                                         const Weights<STEPS, NT, HELD>& weights, int lane) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int tile = 0; tile < NT; tile++) {
            const uint4 b = weights.at(tile, step, lane);
            const uint4 low = rows[0][step], high = HALVES == 2 ? rows[HALVES - 1][step] : uint4{0, 0, 0, 0};
            multiply(sums[tile], low.x, high.x, low.y, high.y, b.x, b.y);
            multiply(sums[tile], low.z, high.z, low.w, high.w, b.z, b.w);
        }
    }
}

// Each warp's sums into its own slice, which nobody reads any more: [rows][columns].
template <int NT>
__device__ __forceinline__ void leave(const float (&sums)[NT][4], float* to, int rows, int lane) {
    const int group = lane >> 2, quarter = lane & 3;
    __syncwarp();
#pragma unroll
    for (int tile = 0; tile < NT; tile++) {
        const int column = tile * 8 + quarter * 2;
        if (group < rows) *reinterpret_cast<float2*>(to + group * NT * 8 + column) = {sums[tile][0], sums[tile][1]};
        if (group + 8 < rows)
            *reinterpret_cast<float2*>(to + (group + 8) * NT * 8 + column) = {sums[tile][2], sums[tile][3]};
    }
}

__device__ __forceinline__ float added(const char* slices, int size, int place) {
    float total = reinterpret_cast<const float*>(slices)[place];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) total += reinterpret_cast<const float*>(slices + warp * size)[place];
    return total;
}

__device__ __forceinline__ uint4 cached(const __nv_bfloat16* at, bool known) {
    return known ? __ldcg(reinterpret_cast<const uint4*>(at)) : uint4{0, 0, 0, 0};
}

struct Product {
    const __nv_bfloat16* x;       // [rows, stride]
    const __nv_bfloat16* weight;  // [outputs, inner]
    __nv_bfloat16* out;           // [rows, outputs]
    const float* squares;         // [rows, WARPS, parts] or null: a warp's slice is a head, whose norm scales its sum
    int rows, real, stride, outputs, parts, pdl;
    int before, gap;  // weight rows asked for before the wait, and clocks between two of them (shared memory only)
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

template <int STEPS, int NT, int HALVES, bool HELD>
__global__ void __launch_bounds__(WARPS * 32, HELD && HALVES == 1 ? 2 : 1) product(Product p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t arrived[WARPS];
    constexpr int INNER = STEPS * 32 * WARPS, COLUMNS = NT * 8, SIZE = Weights<STEPS, NT, HELD>::SIZE;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quarter = lane & 3;
    const int first = blockIdx.x * COLUMNS, count = min(COLUMNS, p.outputs - first);
    const int begin = blockIdx.y * TILE, rows = min(TILE, p.rows - begin), real = min(TILE, p.real - begin);
    char* slice = shared + warp * SIZE;
    const __nv_bfloat16* weight = p.weight + static_cast<size_t>(first) * INNER + warp * (STEPS * 32);
    Weights<STEPS, NT, HELD> weights;
    weights.begin(weight, count, INNER, slice, arrived + warp, p.before, p.gap, lane);
    depend(p.pdl);
    uint4 x[HALVES][STEPS];
    const __nv_bfloat16* at = p.x + static_cast<size_t>(begin + group) * p.stride + warp * (STEPS * 32) + quarter * 8;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            x[half][step] = cached(at + half * 8 * p.stride + step * 32, group + half * 8 < real);
    weights.finish(weight, count, INNER, arrived + warp, p.before, lane);
    float scale[2] = {1.0f, 1.0f};
    if (p.squares != nullptr) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const int row = group + 8 * half;
            const float* squares = p.squares + (static_cast<size_t>(begin + row) * WARPS + warp) * p.parts;
            scale[half] = factor(squares, p.parts, row < real, STEPS * 32, p.eps, quarter);
        }
    }
    float sums[NT][4] = {};
    weights.wait(arrived + warp);
    products(sums, x, weights, lane);
    if (p.squares != nullptr) {
#pragma unroll
        for (int tile = 0; tile < NT; tile++) {
            sums[tile][0] *= scale[0], sums[tile][1] *= scale[0];
            sums[tile][2] *= scale[1], sums[tile][3] *= scale[1];
        }
    }
    leave<NT>(sums, reinterpret_cast<float*>(slice), rows, lane);
    __syncthreads();
    for (int place = threadIdx.x; place < rows * COLUMNS; place += WARPS * 32) {
        const int row = place / COLUMNS, column = place % COLUMNS;
        if (column < count)
            p.out[static_cast<size_t>(begin + row) * p.outputs + first + column] =
                __float2bfloat16_rn(added(shared, SIZE, place));
    }
    end(p.pdl);
}

struct Gate {
    const __nv_bfloat16 *x, *residual, *norm, *gate;  // [rows, inner] twice, [inner], [experts, inner]
    float *sums, *squares;                            // [rows, experts], [rows]
    __nv_bfloat16* total;                             // [rows, inner]
    int rows, experts, pdl;
};

__device__ __forceinline__ float2 wide(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

__device__ __forceinline__ uint32_t narrow(float2 pair) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(pair.x, pair.y);
    return *reinterpret_cast<const uint32_t*>(&two);
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
template <int STEPS, int HALVES, bool HELD>
__global__ void __launch_bounds__(WARPS * 32, 1) gated(Gate p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t arrived[WARPS];
    __shared__ float squared[WARPS][TILE];
    __shared__ uint4 norm[WARPS][STEPS * 4];
    constexpr int INNER = STEPS * 32 * WARPS, SIZE = Weights<STEPS, 1, HELD>::SIZE;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quarter = lane & 3;
    const int first = blockIdx.x * 8, begin = blockIdx.y * TILE, rows = min(TILE, p.rows - begin);
    char* slice = shared + warp * SIZE;
    const __nv_bfloat16* weight = p.gate + static_cast<size_t>(first) * INNER + warp * (STEPS * 32);
    Weights<STEPS, 1, HELD> weights;
    weights.begin(weight, min(8, p.experts - first), INNER, slice, arrived + warp, 8, 0, lane);
    const int place = warp * (STEPS * 32) + quarter * 8;
    uint32_t mine = 0;  // steps whose 64 bytes of each row's sum are this program's to keep
    for (int step = 0; step < STEPS; step++)
        mine |= static_cast<uint32_t>((warp * STEPS + step) % gridDim.x == blockIdx.x) << step;
    for (int piece = lane; piece < STEPS * 4; piece += 32)
        norm[warp][piece] = once(p.norm + warp * (STEPS * 32) + piece * 8);
    __syncwarp();
    depend(p.pdl);
    float sums[1][4] = {};
    uint4 x[HALVES][STEPS], residual[STEPS];
    const size_t at = static_cast<size_t>(begin + group) * INNER + place;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const bool known = group + half * 8 < rows;
        float own = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) x[half][step] = cached(p.x + at + half * 8 * INNER + step * 32, known);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            residual[step] = cached(p.residual + at + half * 8 * INNER + step * 32, known);
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
    weights.wait(arrived + warp);
    products(sums, x, weights, lane);
    leave<1>(sums, reinterpret_cast<float*>(slice), rows, lane);
    __syncthreads();
    if (threadIdx.x < rows * 8) {
        const int row = threadIdx.x / 8, column = first + threadIdx.x % 8;
        if (column < p.experts)
            p.sums[static_cast<size_t>(begin + row) * p.experts + column] = added(shared, SIZE, threadIdx.x);
    }
    if (blockIdx.x == 0 && threadIdx.x < rows) {
        float total = squared[0][threadIdx.x];
        for (int other = 1; other < WARPS; other++) total += squared[other][threadIdx.x];
        p.squares[begin + threadIdx.x] = total;
    }
    end(p.pdl);
}

template <typename Kernel, typename Arguments>
int launch(Kernel kernel, dim3 grid, int shared, int pdl, cudaStream_t stream, Arguments arguments) {
    // A program starts beside one of another kernel only where both divide the multiprocessor's memory the same way.
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess && shared > LARGE)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
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

template <int STEPS, int NT, bool HELD>
int launch_product(const Product& p, cudaStream_t stream) {
    const dim3 grid((p.outputs + NT * 8 - 1) / (NT * 8), (p.rows + TILE - 1) / TILE);
    constexpr int shared = WARPS * Weights<STEPS, NT, HELD>::SIZE;
    if (p.rows <= 8) return launch(product<STEPS, NT, 1, HELD>, grid, shared, p.pdl, stream, p);
    return launch(product<STEPS, NT, 2, HELD>, grid, shared, p.pdl, stream, p);
}

template <int STEPS, int NT>
int launch_product(const Product& p, bool hold, cudaStream_t stream) {
    if constexpr (STEPS * NT <= MOST_HELD)
        if (hold) return launch_product<STEPS, NT, true>(p, stream);
    return launch_product<STEPS, NT, false>(p, stream);
}

template <int STEPS, bool HELD>
int launch_gate(const Gate& p, cudaStream_t stream) {
    const dim3 grid((p.experts + 7) / 8, (p.rows + TILE - 1) / TILE);
    constexpr int shared = WARPS * Weights<STEPS, 1, HELD>::SIZE;
    if (p.rows <= 8) return launch(gated<STEPS, 1, HELD>, grid, shared, p.pdl, stream, p);
    return launch(gated<STEPS, 2, HELD>, grid, shared, p.pdl, stream, p);
}

}  // namespace stream

using namespace stream;

// Both return a cudaError_t. `tiles`: eights of columns a program; `hold`: a small share of weights in registers.
extern "C" int stream_product(const void* x, const void* weight, void* out, const void* squares, int rows, int real,
                              int stride, int outputs, int inner, int parts, float eps, int tiles, int hold, int before,
                              int gap, int pdl, void* stream) {
    const Product p{static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(weight),
                    static_cast<__nv_bfloat16*>(out), static_cast<const float*>(squares), rows, real, stride, outputs,
                    parts, pdl, before, gap, eps};
    const auto on = static_cast<cudaStream_t>(stream);
#define CASE(STEPS, NT) \
    if (inner == STEPS * 32 * WARPS && tiles == NT) return launch_product<STEPS, NT>(p, hold, on)
#define CASES(STEPS) \
    CASE(STEPS, 1);  \
    CASE(STEPS, 2);  \
    CASE(STEPS, 3);  \
    CASE(STEPS, 4);  \
    CASE(STEPS, 5)
    CASES(1);
    CASES(4);
    CASES(6);
    CASES(10);
#undef CASES
#undef CASE
    return cudaErrorInvalidValue;
}

extern "C" int stream_gate(const void* x, const void* residual, const void* norm, const void* gate, void* sums,
                           void* squares, void* total, int rows, int experts, int inner, int hold, int pdl,
                           void* stream) {
    const Gate p{static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(residual),
                 static_cast<const __nv_bfloat16*>(norm), static_cast<const __nv_bfloat16*>(gate),
                 static_cast<float*>(sums), static_cast<float*>(squares), static_cast<__nv_bfloat16*>(total),
                 rows, experts, pdl};
    const auto on = static_cast<cudaStream_t>(stream);
    if (inner == 10 * 32 * WARPS) return hold ? launch_gate<10, true>(p, on) : launch_gate<10, false>(p, on);
    if (inner == 1 * 32 * WARPS) return hold ? launch_gate<1, true>(p, on) : launch_gate<1, false>(p, on);
    return cudaErrorInvalidValue;
}
