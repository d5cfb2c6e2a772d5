// Reads one document a line, and answers each with a line: 1 when it is JSON, else 0. Built with sanitizers.
#include <iostream>
#include <string>

#include "base/json_value.hpp"

int main() {
    std::string line;
    while (std::getline(std::cin, line)) std::cout << (dgj::parse_json(line).value ? 1 : 0) << '\n';
    return 0;
}
