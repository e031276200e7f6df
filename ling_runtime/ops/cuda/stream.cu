// What the library exports: plain C, pointers, sizes and a stream. Every function returns a cudaError_t.

#include "gate.cuh"
#include "product.cuh"

using namespace stream;

// `tiles`: eights of columns a program.
extern "C" int stream_product(const void* x, const void* weight, void* out, const void* squares, int rows, int real,
                              int stride, int outputs, int inner, int parts, float eps, int tiles, int pdl,
                              void* stream) {
    const Product p{static_cast<const bf16*>(x), static_cast<const bf16*>(weight), static_cast<bf16*>(out),
                    static_cast<const float*>(squares), rows, real, stride, outputs, parts, pdl, eps};
    const auto on = static_cast<cudaStream_t>(stream);
#define CASE(STEPS, NT) \
    if (inner == STEPS * 32 * WARPS && tiles == NT) return launch_product<STEPS, NT>(p, on)
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

template <typename T>
int gate_of(const void* x, const void* residual, const void* norm, const void* gate, void* sums, void* squares,
            void* total, int rows, int experts, int inner, int pdl, void* stream) {
    const Gate<T> p{static_cast<const bf16*>(x), static_cast<const bf16*>(residual), static_cast<const bf16*>(norm),
                    static_cast<const T*>(gate), static_cast<float*>(sums), static_cast<float*>(squares),
                    static_cast<bf16*>(total), rows, experts, pdl};
    const auto on = static_cast<cudaStream_t>(stream);
    if (inner == 10 * 32 * WARPS) return launch_gate<T, 10>(p, on);
    if (inner == 1 * 32 * WARPS) return launch_gate<T, 1>(p, on);
    return cudaErrorInvalidValue;
}

// `full`: the gate's weights are in fp32, else in bf16.
extern "C" int stream_gate(const void* x, const void* residual, const void* norm, const void* gate, void* sums,
                           void* squares, void* total, int rows, int experts, int inner, int full, int pdl,
                           void* stream) {
    const auto of = full ? gate_of<float> : gate_of<bf16>;
    return of(x, residual, norm, gate, sums, squares, total, rows, experts, inner, pdl, stream);
}
