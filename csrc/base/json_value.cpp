#include "base/json_value.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace dgj {
namespace {

constexpr int kMostLevels = 64;  // recursion is bounded, whatever the file holds

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    JsonResult run() {
        JsonValue value;
        const bool good = read(value, 0);
        skip_space();
        if (good && at_ < text_.size()) wrong("something follows the value");
        if (!problem_.empty()) return {std::nullopt, problem_};
        return {std::move(value), ""};
    }

private:
    bool wrong(std::string_view what) {
        if (problem_.empty()) problem_ = fmt::format("byte {}: {}", at_, what);
        return false;
    }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
            at_++;
    }

    bool take(char wanted) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != wanted) return false;
        at_++;
        return true;
    }

    bool read(JsonValue& out, int level) {
        if (level > kMostLevels) return wrong("nested too deeply");
        skip_space();
        if (at_ >= text_.size()) return wrong("the text ends where a value is due");
        switch (text_[at_]) {
            case '{': return read_object(out, level);
            case '[': return read_list(out, level);
            case '"': {
                std::string text;
                if (!read_string(text)) return false;
                out = JsonValue(std::move(text));
                return true;
            }
            case 't': return read_word("true", JsonValue(true), out);
            case 'f': return read_word("false", JsonValue(false), out);
            case 'n': return read_word("null", JsonValue(), out);
            default: return read_number(out);
        }
    }

    bool read_word(std::string_view word, JsonValue value, JsonValue& out) {
        if (!text_.substr(at_).starts_with(word)) return wrong("no value starts like this");
        at_ += word.size();
        out = std::move(value);
        return true;
    }

    bool read_number(JsonValue& out) {
        double number = 0;
        const char* begin = text_.data() + at_;
        const char* end = text_.data() + text_.size();
        const bool plausible = *begin == '-' ? end - begin > 1 && begin[1] >= '0' && begin[1] <= '9'
                                             : *begin >= '0' && *begin <= '9';  // from_chars takes "inf"
        const auto [stop, error] = plausible ? std::from_chars(begin, end, number)
                                             : std::from_chars_result{begin, std::errc::invalid_argument};
        if (error != std::errc()) return wrong("no value starts like this");
        at_ += static_cast<std::size_t>(stop - begin);
        out = JsonValue(number);
        return true;
    }

    bool read_list(JsonValue& out, int level) {
        at_++;
        JsonValue::List list;
        if (!take(']')) {
            do {
                if (!read(list.emplace_back(), level + 1)) return false;
            } while (take(','));
            if (!take(']')) return wrong("a comma or ']' is missing");
        }
        out = JsonValue(std::move(list));
        return true;
    }

    bool read_object(JsonValue& out, int level) {
        at_++;
        JsonValue::Object object;
        if (!take('}')) {
            do {
                skip_space();
                std::string name;
                if (at_ >= text_.size() || text_[at_] != '"') return wrong("a name in quotes is due");
                if (!read_string(name)) return false;
                if (!take(':')) return wrong("':' is missing");
                if (!read(object[name], level + 1)) return false;
            } while (take(','));
            if (!take('}')) return wrong("a comma or '}' is missing");
        }
        out = JsonValue(std::move(object));
        return true;
    }

    bool read_string(std::string& out) {
        at_++;
        while (at_ < text_.size()) {
            const char c = text_[at_++];
            if (c == '"') return true;
            if (static_cast<unsigned char>(c) < 0x20) return wrong("a control character in a string");
            if (c != '\\') {
                out += c;
            } else if (!read_escape(out)) {
                return wrong("an escape that JSON does not know");
            }
        }
        return wrong("a string has no end");
    }

    bool read_escape(std::string& out) {
        if (at_ >= text_.size()) return false;
        const char c = text_[at_++];
        const std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
        if (const auto known = names.find(c); known != std::string_view::npos) {
            out += values[known];
            return true;
        }
        std::uint32_t code = 0;
        if (c != 'u' || !read_hex(code)) return false;
        const bool high = code >= 0xd800 && code < 0xdc00;
        if (high) {
            std::uint32_t low = 0;
            if (!text_.substr(at_).starts_with("\\u")) return false;
            at_ += 2;
            if (!read_hex(low) || low < 0xdc00 || low > 0xdfff) return false;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xdc00 && code < 0xe000) {
            return false;
        }
        add_utf8(code, out);
        return true;
    }

    bool read_hex(std::uint32_t& code) {
        if (text_.size() - at_ < 4) return false;
        const char* begin = text_.data() + at_;
        const auto [stop, error] = std::from_chars(begin, begin + 4, code, 16);
        at_ += 4;
        return error == std::errc() && stop == begin + 4;
    }

    static void add_utf8(std::uint32_t code, std::string& out) {
        if (code < 0x80) {
            out += static_cast<char>(code);
            return;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        constexpr unsigned kLead[] = {0, 0xc0, 0xe0, 0xf0};
        out += static_cast<char>(kLead[more] | code >> (6 * more));
        for (int i = more - 1; i >= 0; i--) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::string problem_;
};

}  // namespace

const JsonValue* JsonValue::member(std::string_view name) const {
    const auto* object = std::get_if<Object>(&value_);
    if (object == nullptr) return nullptr;
    const auto found = object->find(name);
    return found == object->end() ? nullptr : &found->second;
}

JsonResult parse_json(std::string_view text) { return Parser(text).run(); }

}  // namespace dgj
