#include "cache/json.hpp"

#include <fmt/format.h>

#include <cmath>

namespace dgj {
namespace {

// Length of the UTF-8 character at the front of `text`, 0 when the bytes are none (overlong and surrogates
// included).
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    const unsigned char second = byte(1);
    const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool surrogate = first == 0xed && second >= 0xa0;
    const bool too_large = first == 0xf4 && second >= 0x90;
    return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

std::string json_string(std::string_view text) {
    std::string out = "\"";
    while (!text.empty()) {
        const char c = text.front();
        std::size_t length = utf8_length(text);
        if (length == 0) {
            out += "\\ufffd";
            length = 1;
        } else if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
            out += c == '\n' ? "\\n" : fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += text.substr(0, length);
        }
        text.remove_prefix(length);
    }
    return out + "\"";
}

void JsonObject::begin(std::string_view name) {
    if (body_.size() > 1) body_ += ", ";
    body_ += json_string(name) + ": ";
}

void JsonObject::add(std::string_view name, std::string_view text) {
    begin(name);
    body_ += json_string(text);
}

void JsonObject::add(std::string_view name, std::int64_t number) {
    begin(name);
    body_ += fmt::format("{}", number);
}

void JsonObject::add(std::string_view name, double number) {
    begin(name);
    body_ += std::isfinite(number) ? fmt::format("{:.3f}", number) : "null";  // JSON has no NaN
}

void JsonObject::add(std::string_view name, const std::vector<std::string>& texts) {
    begin(name);
    body_ += "[";
    for (std::size_t i = 0; i < texts.size(); ++i) body_ += (i > 0 ? ", " : "") + json_string(texts[i]);
    body_ += "]";
}

}  // namespace dgj
