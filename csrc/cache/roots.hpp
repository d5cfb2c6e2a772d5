// Which folders the cache uses, and whether they can be trusted: what lies in them will run on the GPU.
#pragma once

#include <string>
#include <vector>

#include "cache/fs.hpp"

namespace dgj {

struct Root {
    std::string path;  // as configured, absolute; entries lie in path/v<schema>
    bool writable = false;
};

struct Roots {
    std::vector<Root> read;  // in the order of look-up; the first may be the writable one
    std::string primary;     // the writable root, which need not exist yet; "" when there is none
    std::string unwritable;  // why the first root is only read; of interest when something is to be written
    std::vector<std::string> warnings;  // what the user has to know although it may go well
};

// Reads the environment: DGJ_CACHE_DIR as primary:seed:seed, else DG_JIT_CACHE_DIR with deep_gemm_jit below
// each, else XDG_CACHE_HOME/deep_gemm_jit, else ~/.cache/deep_gemm_jit. Creates nothing.
Roots open_roots(Fs& fs);

// Creates root and the folders that publishing needs, all 0700, and checks them. "" or why it is refused.
std::string prepare_writable_root(Fs& fs, const std::string& root);

std::string version_folder(const std::string& root);

// "no such file or directory" and the like, for messages.
std::string errno_text(int number);

}  // namespace dgj
