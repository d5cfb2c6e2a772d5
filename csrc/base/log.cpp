#include "base/log.hpp"

#include <atomic>

namespace dgj {
namespace {
std::atomic<LogSink> g_sink{nullptr};
}

void set_log_sink(LogSink sink) { g_sink.store(sink, std::memory_order_release); }

void log(LogLevel level, const std::string& line) {
    if (LogSink sink = g_sink.load(std::memory_order_acquire)) sink(level, line);
}

}  // namespace dgj
