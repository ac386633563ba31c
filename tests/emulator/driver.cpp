// The CUDA driver's functions that dflash calls (libcuda.so.1), and streams, events, graphs and memory for the cupy package.
//
// A stream is a queue. It runs as far as it can whenever something is added to it. What waits for another stream or GPU goes
// on when that one has gone on.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "runtime.h"

struct Event {
    int pending = 0;  // records that have not been reached
};

// Something that a stream does; false while it must wait.
typedef std::function<Progress()> Work;

struct Item {
    std::shared_ptr<Launch> launch;  // null for other work
    std::shared_ptr<Event> recorded;
    Work work;
};

struct Graph {
    std::vector<Item> items;
};

static std::recursive_mutex mutex;
static std::map<u64, std::deque<Item>> streams;  // by handle: device << 32 | number
static std::map<u64, Graph*> captures;           // by handle of the stream
static std::map<u64, std::shared_ptr<Event>> events;

#define LOCKED const std::lock_guard<std::recursive_mutex> locked(mutex)

static Item launch_of(const std::shared_ptr<Launch>& launch) {
    return {launch, nullptr, [launch] { return run(*launch); }};
}

static Item once(std::function<void()> action) {
    return {nullptr, nullptr, [action] { return action(), DONE; }};
}

static bool run_stream(u64 stream) {
    std::deque<Item>& items = streams[stream];
    bool moved = false;
    while (!items.empty() && !failure) {
        const Progress made = items.front().work();
        moved |= made != STUCK;
        if (made != DONE) break;
        items.pop_front();
    }
    if (failure) items.clear();
    return moved;
}

static void add(u64 stream, Item item) {
    const auto capture = captures.find(stream);
    if (capture != captures.end()) {
        capture->second->items.push_back(std::move(item));
        return;
    }
    if (item.recorded) ++item.recorded->pending;
    streams[stream].push_back(std::move(item));
    run_stream(stream);
}

static bool run_streams() {
    bool moved = false;
    for (auto& [stream, items] : streams) moved |= run_stream(stream);
    return moved;
}

static bool all_done() {
    for (auto& [stream, items] : streams)
        if (!items.empty()) return false;
    return true;
}

Launch::Launch(Function* of, const uint3& grid_, const uint3& block_, u32 shared_, void** from)
    : function(of), grid(grid_), block(block_), shared(shared_) {
    constexpr int UNIT = 64;  // bytes; a tensor map is aligned to them
    size_t at = 0;
    for (int size : of->sizes) at += (size + UNIT - 1) / UNIT * UNIT;
    values.resize(at / 8 + UNIT / 8);
    u8* to = (u8*)values.data() + (-(uintptr_t)values.data() % UNIT);
    for (size_t i = 0; i < of->sizes.size(); ++i) {
        memcpy(to, from[i], of->sizes[i]);
        arguments.push_back(to);
        to += (of->sizes[i] + UNIT - 1) / UNIT * UNIT;
    }
}

Launch::Launch(const Launch& other)
    : Launch(other.function, other.grid, other.block, other.shared, (void**)other.arguments.data()) {}

static bool is_loaded(Function* function) {
    if (!function->call) function->compile(function);
    return function->call;
}

extern "C" {
struct LaunchConfig {
    uint3 grid, block;
    u32 shared;
    u64 stream;
    void* attributes;
    u32 n_attributes;
};

int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** arguments, void**) {
    LOCKED;
    if (failure) return failure;
    if (!is_loaded(function)) return NO_BINARY;
    const uint3 &grid = config->grid, &block = config->block;
    const u64 threads = (u64)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || (int)config->shared > function->most_shared) return 1;
    if ((u64)grid.x * grid.y * grid.z % function->cluster || config->stream >> 32 != (u64)function->device) return 1;
    add(config->stream, launch_of(std::make_shared<Launch>(function, grid, block, config->shared, arguments)));
    return failure;
}

int cuGetErrorName(int code, const char** name) {
    *name = code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : code == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuGetErrorString(int, const char** text) {
    *text = "an error of the emulator";
    return 0;
}

int cuFuncGetAttribute(int* value, int attribute, Function* function) {
    LOCKED;
    if (!is_loaded(function)) return NO_BINARY;
    *value = attribute == 8 ? function->most_shared : *function->static_bytes;
    return 0;
}

int cuFuncSetAttribute(Function* function, int attribute, int n_bytes) {
    if (attribute == 9) return 0;  // the carve-out is a matter of speed
    if (n_bytes > (int)MOST_SHARED) return 1;
    function->most_shared = n_bytes;
    return 0;
}

int cuGraphGetNodes(Graph* graph, void*, size_t* n) {
    *n = graph->items.size();
    return 0;
}

int cuTensorMapEncodeTiled(u64* map, int type, u32 rank, void* address, const u64* sizes, const u64* strides, const u32* box,
                           const u32*, int, int swizzle, int, int) {
    constexpr int ITEM[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    if (rank != 2 || type < 0 || type > 9 || (swizzle != 0 && swizzle != 3) || (u64)address % 16 || strides[0] % 16) return 1;
    const u64 item = ITEM[type], row = box[0] * item;
    if (box[0] > 256 || box[1] > 256 || row % 16 || (swizzle && row > 128)) return 1;
    const u64 words[] = {(u64)address, sizes[0], sizes[1], strides[0], box[0], box[1], item, (u64)swizzle};
    memcpy(map, words, sizeof words);  // EmulatedMap in ptx.h
    return 0;
}

// A function of a module that is compiled when it is launched first: `compile` calls `emu_load`.
Function* emu_function(const char* name, int device, void (*compile)(Function*)) {
    Function* made = new Function;
    made->name = name, made->device = device, made->compile = compile;
    return made;
}

void emu_load(Function* made, const char* library) {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return (void)fprintf(stderr, "emulator: %s\n", dlerror());
    auto symbol = [&](const char* prefix) { return dlsym(handle, (prefix + made->name).c_str()); };
    if (!symbol("emu_call_")) return (void)fprintf(stderr, "emulator: no function %s\n", made->name.c_str());
    for (const int* size = (const int*)symbol("emu_sizes_"); *size; ++size) made->sizes.push_back(*size);
    made->cluster = *(const int*)symbol("emu_cluster_"), made->static_bytes = (int*)dlsym(handle, "emu_static_bytes");
    made->call = (void (*)(void**))symbol("emu_call_");
}

int emu_failure() { return failure; }

// Wait for all streams; returns the CUresult.
int emu_synchronize() {
    LOCKED;
    for (int idle = 0; !all_done() && !failure;) {
        idle = run_streams() ? 0 : idle + 1;
        if (idle < 200) continue;
        for (auto& [stream, items] : streams)
            if (!items.empty() && items.front().launch) print_waiting(*items.front().launch);
        failure = TIMED_OUT;
    }
    return failure;
}

int emu_stream_done(u64 stream) {
    LOCKED;
    while (run_streams()) continue;
    return streams[stream].empty();
}

void emu_copy(u64 stream, void* to, const void* from, size_t n_bytes) {
    LOCKED;
    add(stream, once([=] { memmove(to, from, n_bytes); }));
}

// The same from memory that the caller may change at once.
void emu_upload(u64 stream, void* to, const u8* from, size_t n_bytes) {
    LOCKED;
    const std::vector<u8> bytes(from, from + n_bytes);
    add(stream, once([=] { memcpy(to, bytes.data(), n_bytes); }));
}

void emu_fill(u64 stream, void* to, int value, size_t n_bytes) {
    LOCKED;
    add(stream, once([=] { memset(to, value, n_bytes); }));
}

// Returns a handle of this moment of a stream, 0 within a capture.
u64 emu_record(u64 stream) {
    LOCKED;
    if (captures.count(stream)) return 0;
    static u64 handle = 0;
    const auto event = events[++handle] = std::make_shared<Event>();
    add(stream, {nullptr, event, [event] { return --event->pending, DONE; }});
    return handle;
}

int emu_event_done(u64 handle) {
    LOCKED;
    return !handle || !events[handle]->pending;
}

void emu_wait(u64 stream, u64 handle) {
    LOCKED;
    if (!handle) return;
    const auto event = events[handle];
    add(stream, {nullptr, nullptr, [event] { return event->pending ? STUCK : DONE; }});
}

// Begin a capture, or join that of another stream.
void emu_capture(u64 stream, u64 other) {
    LOCKED;
    captures[stream] = captures.count(other) ? captures[other] : new Graph;
}

int emu_is_capturing(u64 stream) {
    LOCKED;
    return captures.count(stream);
}

Graph* emu_end_capture(u64 stream) {
    LOCKED;
    Graph* const made = captures[stream];
    for (auto each = captures.begin(); each != captures.end();) each = each->second == made ? captures.erase(each) : std::next(each);
    return made;
}

void emu_launch_graph(u64 stream, const Graph* graph) {
    LOCKED;
    for (const Item& item : graph->items) add(stream, item.launch ? launch_of(std::make_shared<Launch>(*item.launch)) : item);
}

// Memory that ends at a page which can't be accessed.
constexpr size_t PAGE = 4096, ALIGNMENT = 512;
static size_t rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

void* emu_malloc(size_t n_bytes) {
    const size_t room = rounded(n_bytes, ALIGNMENT), pages = rounded(room, PAGE);
    u8* at = map(pages + PAGE);
    mprotect(at + pages, PAGE, PROT_NONE);
    return at + pages - room;
}

void emu_free(u8* at, size_t n_bytes) {
    const size_t room = rounded(n_bytes, ALIGNMENT), pages = rounded(room, PAGE);
    munmap(at + room - pages, pages + PAGE);
}
}
