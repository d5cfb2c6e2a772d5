#include "compile/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace dgj {

std::optional<std::string> read_text_file(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    std::string text;
    std::array<char, 16384> buffer;
    ssize_t n = 0;
    while ((n = read(fd, buffer.data(), buffer.size())) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        text.append(buffer.data(), static_cast<std::size_t>(n));
    }
    close(fd);
    if (n < 0) return std::nullopt;
    return text;
}

std::string write_text_file(const std::string& folder, const std::string& name, const std::string& text) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return "";
    const std::string path = folder + "/" + name;
    std::string temporary = path + ".XXXXXX";
    const int fd = mkostemp(temporary.data(), O_CLOEXEC);
    if (fd < 0) return "";
    std::size_t done = 0;
    bool good = true;
    while (good && done < text.size()) {
        const ssize_t n = write(fd, text.data() + done, text.size() - done);
        if (n < 0 && errno == EINTR) continue;
        good = n > 0;
        if (good) done += static_cast<std::size_t>(n);
    }
    good = close(fd) == 0 && good;
    if (good && rename(temporary.c_str(), path.c_str()) == 0) return path;
    unlink(temporary.c_str());
    return "";
}

std::string private_temporary_folder() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) return "";
    std::string folder = (parent / "deep_gemm_jit.XXXXXX").string();
    return mkdtemp(folder.data()) != nullptr ? folder : "";
}

}  // namespace dgj
