#include "base/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dgj {
namespace {

constexpr std::size_t kBlock = 64;

constexpr std::array<std::uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const unsigned char* p) {
    return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

void blocks_portable(std::uint32_t* state, const unsigned char* data, std::size_t blocks) {
    using std::rotr;
    std::uint32_t w[64];
    for (; blocks > 0; --blocks, data += kBlock) {
        for (int i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const std::uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
            const std::uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
            const std::uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
            const std::uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const std::uint32_t end[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; ++i) state[i] += end[i];
    }
}

#if defined(__x86_64__)
bool cpu_has_sha() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    const bool ssse3_and_sse41 = (ecx & bit_SSSE3) && (ecx & bit_SSE4_1);
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    return ssse3_and_sse41 && (ebx & bit_SHA);
}

// The instructions keep the state as two registers, (a b e f) and (c d g h), highest lane first.
__attribute__((target("sha,sse4.1,ssse3"))) void blocks_sha_ni(
    std::uint32_t* state, const unsigned char* data, std::size_t blocks) {
    const __m128i byte_swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abef = _mm_set_epi32(static_cast<int>(state[0]), static_cast<int>(state[1]),
                                 static_cast<int>(state[4]), static_cast<int>(state[5]));
    __m128i cdgh = _mm_set_epi32(static_cast<int>(state[2]), static_cast<int>(state[3]),
                                 static_cast<int>(state[6]), static_cast<int>(state[7]));
    for (; blocks > 0; --blocks, data += kBlock) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];  // a ring: w[i % 4] holds message words 4i .. 4i+3
        for (std::size_t i = 0; i < 16; ++i) {
            __m128i& now = w[i % 4];
            if (i < 4) {
                now = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i);
                now = _mm_shuffle_epi8(now, byte_swap);
            } else {
                const __m128i& w3 = w[(i + 3) % 4];  // four words back
                const __m128i minus7 = _mm_alignr_epi8(w3, w[(i + 2) % 4], 4);
                now = _mm_sha256msg1_epu32(now, w[(i + 1) % 4]);
                now = _mm_sha256msg2_epu32(_mm_add_epi32(now, minus7), w3);
            }
            const __m128i* round = reinterpret_cast<const __m128i*>(kRound.data()) + i;
            const __m128i sum = _mm_add_epi32(now, _mm_load_si128(round));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    alignas(16) std::uint32_t lanes[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), abef);
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes) + 1, cdgh);
    const std::uint32_t out[8] = {lanes[3], lanes[2], lanes[7], lanes[6],
                                  lanes[1], lanes[0], lanes[5], lanes[4]};
    std::copy_n(out, 8, state);
}
#endif

}  // namespace

Sha256::Blocks Sha256::portable() { return blocks_portable; }

Sha256::Blocks Sha256::hardware() {
#if defined(__x86_64__)
    static const bool has = cpu_has_sha();
    return has ? blocks_sha_ni : nullptr;
#else
    return nullptr;
#endif
}

Sha256::Blocks Sha256::fastest() {
    const Blocks fast = hardware();
    return fast != nullptr ? fast : portable();
}

Sha256::Sha256(Blocks blocks) : blocks_(blocks), state_(kInitial) {}

void Sha256::update(std::span<const std::byte> bytes) {
    const unsigned char* data = reinterpret_cast<const unsigned char*>(bytes.data());
    std::size_t size = bytes.size();
    if (size == 0) return;
    total_bytes_ += size;
    if (pending_size_ > 0) {
        const std::size_t take = std::min(size, kBlock - pending_size_);
        std::memcpy(pending_.data() + pending_size_, data, take);
        pending_size_ += take, data += take, size -= take;
        if (pending_size_ < kBlock) return;
        blocks_(state_.data(), pending_.data(), 1);
        pending_size_ = 0;
    }
    blocks_(state_.data(), data, size / kBlock);
    pending_size_ = size % kBlock;
    if (pending_size_ > 0) std::memcpy(pending_.data(), data + (size - pending_size_), pending_size_);
}

Digest Sha256::finish() {
    const std::uint64_t bits = total_bytes_ * 8;
    pending_[pending_size_++] = 0x80;
    if (pending_size_ > kBlock - 8) {  // no room for the length: it goes into a block of its own
        std::fill(pending_.begin() + static_cast<std::ptrdiff_t>(pending_size_), pending_.end(), 0);
        blocks_(state_.data(), pending_.data(), 1);
        pending_size_ = 0;
    }
    std::fill(pending_.begin() + static_cast<std::ptrdiff_t>(pending_size_), pending_.end(), 0);
    for (std::size_t i = 0; i < 8; ++i)
        pending_[kBlock - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
    blocks_(state_.data(), pending_.data(), 1);
    Digest digest;
    for (std::size_t i = 0; i < 32; ++i) {
        digest[i] = static_cast<unsigned char>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
}

Digest sha256(std::span<const std::byte> data) {
    Sha256 hash;
    hash.update(data);
    return hash.finish();
}

std::string to_hex(std::span<const unsigned char> bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (unsigned char byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

}  // namespace dgj
