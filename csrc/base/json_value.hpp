// Reads JSON: for the few files that a user hands to the library. Any bytes may be given.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace dgj {

// A value of a document; null is the empty alternative. Of equal names in an object the last one stays.
class JsonValue {
public:
    using List = std::vector<JsonValue>;
    using Object = std::map<std::string, JsonValue, std::less<>>;

    JsonValue() = default;
    template <class T>
    explicit JsonValue(T value) : value_(std::move(value)) {}

    // nullptr when the value is of another kind.
    const std::string* text() const { return std::get_if<std::string>(&value_); }
    const double* number() const { return std::get_if<double>(&value_); }
    const List* list() const { return std::get_if<List>(&value_); }
    // The member of an object; nullptr when there is none, or this is no object.
    const JsonValue* member(std::string_view name) const;

private:
    std::variant<std::monostate, bool, double, std::string, List, Object> value_;
};

struct JsonResult {
    std::optional<JsonValue> value;
    std::string problem;  // "byte 12: a comma is missing"; empty when there is a value
};

// RFC 8259, at most 64 levels deep. Never throws but for lack of memory.
JsonResult parse_json(std::string_view text);

}  // namespace dgj
