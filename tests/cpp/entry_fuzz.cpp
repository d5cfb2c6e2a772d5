// Feeds damaged entries to the parser and their images to the ELF check: entry_fuzz COUNT SEED.
// Built with the address and undefined-behaviour sanitizers, which end the process at the first fault. What
// is accepted must be an entry to the last byte: written anew from its parts it gives the same file.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/entry.hpp"
#include "compile/elf.hpp"
#include "fake_cubin.hpp"

namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kHeader = 56, kChecksum = 32;

class Fuzzer {
public:
    explicit Fuzzer(std::uint64_t seed) : random_(seed) {
        key_.fill(7);
        const Bytes image = driver::image_with_entry("kernel", std::string(200, 'p'));
        seeds_.push_back(dgj::serialize_entry(key_, "{\"arch\": \"sm_90a\", \"kernel\": \"kernel\"}", image));
        seeds_.push_back(dgj::serialize_entry(key_, "", image));
        seeds_.push_back(dgj::serialize_entry(key_, "{}", {}));
    }

    // False when an accepted file is not what its parts give.
    bool turn() {
        Bytes file = seeds_[roll(seeds_.size())];
        const std::size_t changes = 1 + roll(4);
        for (std::size_t i = 0; i < changes; ++i) mutate(file);
        // Half of them with a right checksum, or nothing behind it would ever be reached.
        if (roll(2) == 0 && file.size() >= kChecksum) seal(file);
        dgj::Entry entry;
        const bool same_kernel_only = roll(2) == 0;
        if (!dgj::parse_entry(file, key_, same_kernel_only, entry).empty()) return true;
        ++accepted_;
        whole_ += dgj::image_problem(entry.image, "kernel").empty();
        return dgj::serialize_entry(entry.key, entry.meta, entry.image) == file &&
               (same_kernel_only || entry.key == key_);
    }

    // The ELF check alone: its tables are what an attacker would bend.
    void turn_on_image() {
        Bytes image = driver::image_with_entry("kernel", "payload");
        const std::size_t changes = 1 + roll(3);
        for (std::size_t i = 0; i < changes; ++i) mutate(image);
        whole_ += dgj::image_problem(image, "kernel").empty();
    }

    std::uint64_t accepted() const { return accepted_; }
    std::uint64_t whole() const { return whole_; }

private:
    std::size_t roll(std::size_t sides) { return static_cast<std::size_t>(random_() % sides); }

    static void seal(Bytes& file) {
        const std::span<const std::byte> body = std::span(file).first(file.size() - kChecksum);
        const dgj::Digest digest = dgj::sha256(body);
        std::memcpy(file.data() + body.size(), digest.data(), kChecksum);
    }

    void mutate(Bytes& file) {
        constexpr std::uint64_t kEdges[] = {0,
                                            1,
                                            31,
                                            32,
                                            55,
                                            56,
                                            0x7fffffff,
                                            0x80000000,
                                            0xffffffff,
                                            0x7fffffffffffffff,
                                            0x8000000000000000,
                                            0xffffffffffffffff};
        const std::size_t kind = roll(7);
        if (kind == 0 || file.empty()) {
            file.insert(file.begin() + static_cast<std::ptrdiff_t>(roll(file.size() + 1)), roll(40),
                        static_cast<std::byte>(roll(256)));
            return;
        }
        const std::size_t at = roll(file.size());
        if (kind == 1) file[at] ^= static_cast<std::byte>(1u << roll(8));
        if (kind == 2) file[at] = static_cast<std::byte>(roll(256));
        if (kind == 3) file.resize(at);
        if (kind == 4) file.erase(file.begin() + static_cast<std::ptrdiff_t>(at));
        if (kind >= 5) {  // a number: in the header, or anywhere
            const std::size_t width = std::size_t{1} << roll(4);
            const std::size_t place = kind == 5 ? roll(kHeader) : at;
            const std::uint64_t value = kEdges[roll(std::size(kEdges))] + roll(3) - 1;
            if (place + width <= file.size()) std::memcpy(file.data() + place, &value, width);
        }
    }

    std::mt19937_64 random_;
    dgj::CacheKey key_{};
    std::vector<Bytes> seeds_;
    std::uint64_t accepted_ = 0, whole_ = 0;
};

}  // namespace

int main(int, char** argv) {
    const std::uint64_t count = std::strtoull(argv[1], nullptr, 10);
    Fuzzer fuzzer(std::strtoull(argv[2], nullptr, 10));
    for (std::uint64_t i = 0; i < count; ++i) {
        if (!fuzzer.turn()) {
            std::printf("{\"wrong_at\": %llu}\n", static_cast<unsigned long long>(i));
            return 1;
        }
        fuzzer.turn_on_image();
    }
    std::printf("{\"accepted\": %llu, \"whole\": %llu}\n", static_cast<unsigned long long>(fuzzer.accepted()),
                static_cast<unsigned long long>(fuzzer.whole()));
    return 0;
}
