// hostcuda's test controls, looked up in the driver of this process. On a real driver available() is
// false, and no other function may be called. A control that fails throws std::runtime_error, which
// fails the test.
#pragma once

#include <hostcuda/hostcuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stillmap/vmm/driver.h"

namespace stillmap::testing::hostcuda_control {

bool available();

// Starts again as the machine of `config`, or of the environment. Close all devices before.
void reset(const char *config = nullptr);
std::string config();
void occupy(int device, std::size_t bytes);

std::uint64_t calls(const char *name);  // nullptr: of all functions
hostcuda_counters counters();

// The nth next call of `name` (nullptr: of any) fails; with fail_from, all later ones too.
void fail(const char *name, std::uint64_t nth, CUresult code);
void fail_from(const char *name, std::uint64_t nth, CUresult code);
// `act` is called on the calling thread just before the nth next call of `name` does anything.
// Requires: it lives until then.
void before(const char *name, std::uint64_t nth, std::function<void()> &act);
void stop_failing(const char *name);
std::uint64_t faults_fired();  // since this was last asked

void hold(stream_handle stream);
void release(stream_handle stream);

std::vector<hostcuda_violation> violations();  // the first 64

}  // namespace stillmap::testing::hostcuda_control
