// Which headers a program reaches. Only #include "..." counts, as kernels include nothing else.
#include <algorithm>

#include "emit/emit.hpp"

namespace dgj {
namespace {

std::vector<std::string> included_names(const std::string& text) {
    std::vector<std::string> names;
    const std::string marker = "#include \"";
    for (std::size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, at)) {
        at += marker.size();
        const std::size_t end = text.find('"', at);
        if (end == std::string::npos) break;
        names.push_back(text.substr(at, end - at));
    }
    return names;
}

}  // namespace

std::vector<NamedText> header_closure(const std::string& text, const std::vector<NamedText>& generated) {
    std::vector<NamedText> closure;
    std::vector<std::string> open = included_names(text);
    for (std::size_t i = 0; i < open.size(); i++) {
        const std::string name = open[i];  // a copy: `open` grows below
        const auto same = [&](const NamedText& h) { return h.name == name; };
        if (std::any_of(closure.begin(), closure.end(), same)) continue;
        const auto own = std::find_if(generated.begin(), generated.end(), same);
        closure.push_back(own != generated.end() ? *own : NamedText{name, embedded_file(name)});
        for (std::string& next : included_names(closure.back().text)) open.push_back(std::move(next));
    }
    std::sort(closure.begin(), closure.end(),
              [](const NamedText& a, const NamedText& b) { return a.name < b.name; });
    return closure;
}

}  // namespace dgj
