// SHA-256 (FIPS 180-4). Uses the SHA instructions of x86 where the CPU has them, else portable code with the
// same result.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dgj {

using Digest = std::array<unsigned char, 32>;

class Sha256 {
public:
    using Blocks = void (*)(std::uint32_t* state, const unsigned char* data, std::size_t blocks);

    Sha256() : Sha256(fastest()) {}
    explicit Sha256(Blocks blocks);  // for tests that compare the variants

    void update(std::span<const std::byte> data);
    void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
    Digest finish();  // the object can not be used afterwards

    static Blocks portable();
    static Blocks hardware();  // nullptr when this CPU has no SHA instructions
    static Blocks fastest();

private:
    Blocks blocks_;
    std::array<std::uint32_t, 8> state_;
    std::array<unsigned char, 64> pending_{};
    std::size_t pending_size_ = 0;
    std::uint64_t total_bytes_ = 0;
};

Digest sha256(std::span<const std::byte> data);
std::string to_hex(std::span<const unsigned char> bytes);

}  // namespace dgj
