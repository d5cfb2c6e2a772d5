// What ptxas says with -v, and its advisories C75xx, which appear with or without -v.

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include "compile/nvrtc.hpp"

namespace dgj {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The number that stands before `unit` in the line, as in "16 bytes spill stores"; 0 if there is none.
int number_before(std::string_view line, std::string_view unit) {
    const std::size_t at = line.find(unit);
    if (at == std::string_view::npos) return 0;
    std::size_t begin = at;
    while (begin > 0 && is_digit(line[begin - 1])) --begin;
    int number = 0;
    std::from_chars(line.data() + begin, line.data() + at, number);
    return number;
}

bool has_advisory(std::string_view line) {
    for (std::size_t at = line.find("C75"); at != std::string_view::npos; at = line.find("C75", at + 1)) {
        const bool word = at == 0 || std::isalnum(static_cast<unsigned char>(line[at - 1])) == 0;
        if (word && at + 4 < line.size() && is_digit(line[at + 3]) && is_digit(line[at + 4])) return true;
    }
    return false;
}

}  // namespace

CompileReport parse_compile_log(const std::string& log) {
    CompileReport report;
    std::string_view rest = log;
    while (!rest.empty()) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        report.registers = std::max(report.registers, number_before(line, " registers"));
        report.stack_bytes += number_before(line, " bytes stack frame");
        report.spill_stores += number_before(line, " bytes spill stores");
        report.spill_loads += number_before(line, " bytes spill loads");
        if (has_advisory(line)) report.advisories.emplace_back(line);
    }
    return report;
}

}  // namespace dgj
