// Runs launches: which blocks are started, and which of their threads run next.
//
// A warp runs until its lanes wait for other warps, a block until its warps wait for something outside, and then the next
// block is started. So blocks that wait for each other are all there, as on a GPU that is large enough.
#include <signal.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "runtime.h"

extern "C" void emu_switch(void** save, void* to);
asm(R"(
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr int SAVED_REGISTERS = 6;

extern "C" {
Thread* emu_thread = nullptr;
}
int failure = 0;
u64 progress = 0;
Launch* current = nullptr;

static void* scheduler;
static std::vector<u8*> stacks, shared_memories;  // to be used again
constexpr u32 FLUSH_DENORMALS = 0x8040;

u8* map(size_t n_bytes) {
    void* at = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) return (u8*)at;
    perror("emulator: mmap");
    abort();
}

static u8* take(std::vector<u8*>& from, size_t n_bytes) {
    if (from.empty()) return map(n_bytes);
    u8* taken = from.back();
    from.pop_back();
    return taken;
}

// Faults end the launch: the thread never runs again.
static void fail(int code, const char* why) {
    const Thread& t = *emu_thread;
    fprintf(stderr, "emulator: %s in %s, block (%u, %u, %u), thread %d\n", why, current->function->name.c_str(), t.block.x, t.block.y, t.block.z, t.linear);
    failure = code;
    void* never;
    emu_switch(&never, scheduler);
}

extern "C" void emu_fail(const char* why) {
    fail(LAUNCH_FAILED, why);
    abort();
}

static void on_signal(int number, siginfo_t* about, void*) {
    if (!emu_thread) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "signal %d at address %p", number, about->si_addr);
    fail(ILLEGAL_ADDRESS, text);
}

// For the time of a run: faults of kernels are caught, and denormals are flushed as the kernels are compiled to.
class Running {
  public:
    explicit Running(Launch& launch) : before_(current), csr_(_mm_getcsr()) {
        current = &launch;
        static u8* const stack = map(64 << 10);
        const stack_t alternative = {stack, 0, 64 << 10};
        sigaltstack(&alternative, &stack_);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &action, &actions_[i]);
        _mm_setcsr(csr_ | FLUSH_DENORMALS);
    }
    ~Running() {
        _mm_setcsr(csr_);
        for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &actions_[i], nullptr);
        sigaltstack(&stack_, nullptr);
        current = before_;
    }

  private:
    static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
    Launch* before_;
    u32 csr_;
    stack_t stack_;
    struct sigaction actions_[3];
};

static void yield() { emu_switch(&((Fiber*)emu_thread)->stack_pointer, scheduler); }

void wait(const char* at, const volatile u64* word, u64 mask, u64 value) {
    Fiber& fiber = *(Fiber*)emu_thread;
    fiber.at = at, fiber.watched = word, fiber.mask = mask, fiber.value = value;
    while (!fiber.can_run()) yield();
    fiber.watched = nullptr;
}

extern "C" void emu_poll() {
    ((Fiber*)emu_thread)->at = "a poll";
    yield();
}

static void end(Fiber& fiber) {
    Block& block = *fiber.of;
    Warp& warp = block.warps[fiber.warp];
    fiber.done = true, warp.done |= 1u << fiber.lane;
    --block.alive, --block.cluster->alive, ++progress;
    for (auto& meeting : warp.meetings)
        if (meeting->arrived && !(meeting->mask & ~warp.done & ~meeting->arrived)) meeting->complete();
    Barrier& barrier = block.barriers[0];
    if (barrier.arrived && !barrier.n && barrier.arrived >= block.alive) barrier.complete();
}

static void fiber_main() {
    current->function->call(current->arguments.data());
    end(*(Fiber*)emu_thread);
    yield();
    abort();
}

static void run_warp(Block& block, int warp) {
    const size_t first = 32 * warp, last = std::min(first + 32, block.fibers.size());
    for (u64 before = progress - 1; progress != before && !failure;) {
        before = progress;
        for (size_t i = first; i < last && !failure; ++i) {
            if (!block.fibers[i].can_run()) continue;
            emu_thread = &block.fibers[i];
            emu_switch(&scheduler, block.fibers[i].stack_pointer);
            emu_thread = nullptr;
        }
    }
}

// The order of warps; EMULATOR_SEED shuffles it, which finds barriers that are missing.
static std::vector<int> order_of(size_t n) {
    static const char* const seed = getenv("EMULATOR_SEED");
    static std::mt19937 random(seed ? atoi(seed) : 0);
    std::vector<int> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = i;
    if (seed) std::shuffle(order.begin(), order.end(), random);
    return order;
}

static void run_cluster(Cluster& cluster) {
    for (int idle = 0; cluster.alive && idle < 2 && !failure;) {
        const u64 before = progress;
        for (auto& block : cluster.blocks)
            for (int warp : order_of(block->warps.size())) run_warp(*block, warp);
        idle = progress == before ? idle + 1 : 0;
    }
}

static void start(Fiber& fiber) {
    fiber.stack = take(stacks, STACK_BYTES);
    void** top = (void**)(fiber.stack + STACK_BYTES - 64);
    *--top = nullptr;  // in place of a return address, which aligns the stack
    *--top = (void*)fiber_main;
    top -= SAVED_REGISTERS;
    std::fill(top, top + SAVED_REGISTERS, nullptr);
    fiber.stack_pointer = top;
}

static std::unique_ptr<Block> make_block(const Launch& launch, Cluster* cluster, u64 number) {
    const uint3 &grid = launch.grid, &size = launch.block;
    const int n = launch.threads();
    std::unique_ptr<Block> block(new Block);
    block->cluster = cluster, block->alive = n, block->shared = take(shared_memories, SHARED_BYTES);
    memset(block->shared, GARBAGE, launch.shared);
    memset(block->shared + STATIC_AT, GARBAGE, SHARED_BYTES - STATIC_AT);
    block->fibers.resize(n), block->warps.resize((n + 31) / 32);
    if (n % 32) block->warps.back().done = ~0u << n % 32;
    for (int i = 0; i < n; ++i) {
        Fiber& fiber = block->fibers[i];
        fiber.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        fiber.block = {(u32)(number % grid.x), (u32)(number / grid.x % grid.y), (u32)(number / grid.x / grid.y)};
        fiber.block_size = size, fiber.grid_size = grid, fiber.shared = block->shared;
        fiber.linear = i, fiber.lane = i % 32, fiber.warp = i / 32, fiber.of = block.get();
        start(fiber);
    }
    return block;
}

static void start_cluster(Launch& launch) {
    Cluster& cluster = *launch.running.emplace_back(new Cluster);
    for (int i = 0; i < launch.function->cluster; ++i) cluster.blocks.push_back(make_block(launch, &cluster, launch.started++));
    cluster.alive = launch.function->cluster * launch.threads();
}

static void free_memory(Cluster& cluster) {
    for (auto& block : cluster.blocks) {
        shared_memories.push_back(block->shared);
        for (Fiber& fiber : block->fibers) stacks.push_back(fiber.stack);
    }
}

static bool run_all(Launch& launch) {
    const u64 before = progress;
    for (auto& cluster : launch.running) run_cluster(*cluster);
    auto ended = [](const std::unique_ptr<Cluster>& cluster) {
        const bool all = failure || !cluster->alive;
        if (all) free_memory(*cluster);
        return all;
    };
    launch.running.erase(std::remove_if(launch.running.begin(), launch.running.end(), ended), launch.running.end());
    return progress != before;
}

Progress run(Launch& launch) {
    const Running running(launch);
    const u64 blocks = (u64)launch.grid.x * launch.grid.y * launch.grid.z, before = progress;
    for (;;) {
        const bool moved = run_all(launch);
        if (failure) return DONE;
        if (launch.started < blocks) start_cluster(launch);
        else if (launch.running.empty()) return DONE;
        else if (!moved) return progress == before ? STUCK : MOVED;
    }
}

void print_waiting(Launch& launch) {
    fprintf(stderr, "emulator: %s waits\n", launch.function->name.c_str());
    for (auto& cluster : launch.running)
        for (auto& block : cluster->blocks) {
            std::map<std::string, int> at;
            for (const Fiber& fiber : block->fibers)
                if (!fiber.done) ++at["of warp " + std::to_string(fiber.warp) + " at " + fiber.at];
            const uint3& number = block->fibers[0].block;
            for (auto& [place, n] : at) fprintf(stderr, "    block (%u, %u, %u): %d %s\n", number.x, number.y, number.z, n, place.c_str());
        }
}
