// Whole files in and out, for package metadata and saved sources. The cache has its own, checked, file
// access.
#pragma once

#include <optional>
#include <string>

namespace dgj {

std::optional<std::string> read_text_file(const std::string& path);

// Creates `folder` (0700) if needed and replaces folder/name in one step; "" when that failed, else the path.
std::string write_text_file(const std::string& folder, const std::string& name, const std::string& text);

// A new folder that only this user can enter, in the system's temporary folder; "" when that failed.
std::string private_temporary_folder();

}  // namespace dgj
