// Writes the flat JSON object of an entry. The library never parses it: only people and tools read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dgj {

class JsonObject {
public:
    void add(std::string_view name, std::string_view text);
    void add(std::string_view name, const char* text) { add(name, std::string_view(text)); }
    void add(std::string_view name, std::int64_t number);
    void add(std::string_view name, double number);
    void add(std::string_view name, const std::vector<std::string>& texts);
    std::string finish() const { return body_ + "}"; }

private:
    void begin(std::string_view name);
    std::string body_ = "{";
};

// With quotes. Bytes that are not UTF-8 become U+FFFD, so that the result always parses.
std::string json_string(std::string_view text);

}  // namespace dgj
