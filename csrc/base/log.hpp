// Library code never prints. It hands lines to a sink that the bindings point at the Python logger
// "deep_gemm_jit".
#pragma once

#include <string>

namespace dgj {

enum class LogLevel { kDebug = 10, kInfo = 20, kWarning = 30 };  // the numbers of Python's logging module

using LogSink = void (*)(LogLevel level, const std::string& line);

void set_log_sink(LogSink sink);  // nullptr (the default) drops everything
void log(LogLevel level, const std::string& line);

}  // namespace dgj
