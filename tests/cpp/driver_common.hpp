// What both test drivers share: arguments, results as lines of JSON on stdout, log lines on stderr.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "cache/json.hpp"

namespace driver {

// "--name value" pairs (the same name may come again), then the command and its arguments.
struct Arguments {
    std::map<std::string, std::vector<std::string>> options;
    std::vector<std::string> words;

    Arguments(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            if (word.starts_with("--") && i + 1 < argc) options[word.substr(2)].push_back(argv[++i]);
            else words.push_back(word);
        }
    }
    std::string get(const std::string& name, const std::string& otherwise) const {
        const auto found = options.find(name);
        return found == options.end() ? otherwise : found->second.back();
    }
    std::vector<std::string> all(const std::string& name) const {
        const auto found = options.find(name);
        return found == options.end() ? std::vector<std::string>() : found->second;
    }
};

inline void print(const dgj::JsonObject& object) {
    std::puts(object.finish().c_str());
    std::fflush(stdout);
}

inline void print_error(const dgj::Error& error) {
    constexpr const char* kKinds[] = {"value",   "type",          "not_implemented",
                                      "compile", "jit_forbidden", "runtime"};
    dgj::JsonObject out;
    out.add("error", kKinds[static_cast<int>(error.kind())]);
    out.add("message", error.what());
    print(out);
}

inline void log_to_stderr() {
    dgj::set_log_sink([](dgj::LogLevel level, const std::string& line) {
        std::fprintf(stderr, "LOG %d %s\n", static_cast<int>(level), line.c_str());
    });
}

}  // namespace driver
