// Run-time arguments of the quantisation kernels. One definition for the host, which fills it, and for NVRTC.
#pragma once

namespace dgj {

// n / divisor == (n * multiplier) >> shift for every n < 2^31.
struct Divider {
    unsigned divisor, multiplier, shift;
};

struct CastArgs {
    const void* x;
    void* q;
    void* sf;                                  // fp32, or bytes of packed UE8M0 words
    long long ldx, ldq;                        // row pitches in bytes
    long long sf_stride_row, sf_stride_block;  // in fp32 elements or int32 words
    unsigned rows, cols;
    Divider per_row;  // scale blocks of a row; per token times the threads that share a block
    unsigned vector;  // cols, and the addresses of all rows of x and q, allow 16-byte units of x
    unsigned tiles;   // what a CTA does in one turn; CTA i does tiles i, i + grid, i + 2 grid ...
};

}  // namespace dgj
