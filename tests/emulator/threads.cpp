// How threads wait for each other: functions of warps and warpgroups, barriers of blocks and clusters, mbarriers.
#include <cstring>

#include "runtime.h"

static Fiber& me() { return *(Fiber*)emu_thread; }

static void count(u64& generation) {
    ++*(volatile u64*)&generation;
    ++progress;
}

extern "C" void* emu_shared(SharedVariable& variable, size_t n_bytes, int* used) {
    if (variable.offset < 0) {
        variable.offset = STATIC_AT + (*used + 127) / 128 * 128;
        *used = variable.offset - STATIC_AT + n_bytes;
    }
    const size_t end = variable.offset + n_bytes;
    if (end > SHARED_BYTES || end - STATIC_AT + current->shared > MOST_SHARED) emu_fail("declared and dynamic shared memory are too much");
    return emu_thread->shared + variable.offset;
}

extern "C" u8* emu_at(u32 address) {
    const Block* block = me().of;
    if (const u32 rank = address >> 24) {  // see ptx_mapa
        if (rank > block->cluster->blocks.size()) emu_fail("mapa: the cluster has no such block");
        block = block->cluster->blocks[rank - 1].get();
        address &= 0xffffff;
    }
    if (address >= (u32)SHARED_BYTES || (address < (u32)STATIC_AT && address >= current->shared)) emu_fail("address outside of shared memory");
    return block->shared + address;
}

void Meeting::complete() {
    if (apply) apply(in, out, arrived);
    arrived = 0;
    count(generation);
}

extern "C" void emu_warp(u32 mask, const char* what, const void* in, void* out, Together apply) {
    Warp& warp = me().of->warps[me().warp];
    const int lane = me().lane;
    if (!(mask >> lane & 1)) emu_fail("a lane calls a function of the warp with a mask that leaves it out");
    Meeting* meeting = nullptr;
    for (auto& other : warp.meetings)
        if (other->mask == mask) meeting = other.get();
    if (!meeting) meeting = warp.meetings.emplace_back(new Meeting).get();
    if (meeting->arrived && strcmp(meeting->what, what)) emu_fail("lanes of a warp call different functions");
    meeting->mask = mask, meeting->what = what, meeting->apply = apply;
    meeting->in[lane] = in, meeting->out[lane] = out, meeting->arrived |= 1u << lane;
    ++progress;
    if ((meeting->arrived & ~warp.done) == (mask & ~warp.done)) meeting->complete();
    else wait(what, &meeting->generation, ~0ull, meeting->generation);
}

extern "C" void emu_warpgroup(const void* in, Together apply) {
    WarpgroupMeeting& meeting = me().of->warpgroups[me().linear / 128];
    meeting.in[me().linear % 128] = in;
    ++progress;
    if (++meeting.arrived < 128) return wait("wgmma", &meeting.generation, ~0ull, meeting.generation);
    meeting.arrived = 0;
    apply(meeting.in, nullptr, 0);
    count(meeting.generation);
}

void Barrier::complete() {
    arrived = 0, result = all;
    count(generation);
}

// Count as arrived; true if all threads are there.
static bool arrive(Barrier& barrier, int n, bool predicate) {
    if (!barrier.arrived) barrier.all = true, barrier.n = n;
    if (barrier.n != n) emu_fail("threads expect different numbers of threads at a barrier");
    barrier.all &= predicate;
    ++progress;
    const bool last = ++barrier.arrived >= (n ? n : me().of->alive);
    if (last) barrier.complete();
    return last;
}

static Barrier& barrier_of(int id) {
    if (id < 0 || id > 15) emu_fail("a barrier's number is 0 to 15");
    return me().of->barriers[id];
}

extern "C" bool emu_barrier(int id, int n, bool predicate) {
    Barrier& barrier = barrier_of(id);
    if (!arrive(barrier, n, predicate)) wait("a barrier", &barrier.generation, ~0ull, barrier.generation);
    return barrier.result;
}

extern "C" void emu_barrier_arrive(int id, int n) { arrive(barrier_of(id), n, true); }

extern "C" void emu_cluster_arrive() {
    Cluster& cluster = *me().of->cluster;
    ++progress, ++me().cluster_arrivals;
    if (++cluster.arrived < cluster.alive) return;
    cluster.arrived = 0;
    count(cluster.generation);
}

extern "C" void emu_cluster_wait() {
    const Cluster& cluster = *me().of->cluster;
    const u64 before = me().cluster_arrivals - 1;
    if (cluster.generation <= before) wait("a cluster barrier", &cluster.generation, ~0ull, before);
}

// An mbarrier: bit 0 is its phase, then 20 bits arrivals to come, 20 bits arrivals of a phase, 23 bits bytes to come.
static u64& word(u32 barrier) {
    if (barrier % 8) emu_fail("mbarrier: misaligned");
    return *(u64*)emu_at(barrier);
}

static void change(u32 barrier, int arrivals, long long bytes) {
    u64& state = word(barrier);
    u64 phase = state & 1, pending = state >> 1 & 0xfffff;
    const u64 each = state >> 21 & 0xfffff;
    const long long left = ((long long)state >> 41) + bytes;
    if ((u64)arrivals > pending) emu_fail("mbarrier: more arrivals than expected");
    pending -= arrivals;
    if (!pending && !left) phase ^= 1, pending = each;
    *(volatile u64*)&state = phase | pending << 1 | each << 21 | (u64)left << 41;
    ++progress;
}

extern "C" void emu_mbarrier_init(u32 barrier, int arrivals) { word(barrier) = (u64)arrivals << 1 | (u64)arrivals << 21; }
extern "C" void emu_mbarrier_arrive(u32 barrier, int arrivals) { change(barrier, arrivals, 0); }
extern "C" void emu_mbarrier_arrive_expect(u32 barrier, int n_bytes) { change(barrier, 1, n_bytes); }
extern "C" void emu_mbarrier_complete(u32 barrier, int n_bytes) { change(barrier, 0, -(long long)n_bytes); }
extern "C" void emu_mbarrier_wait(u32 barrier, u32 parity) { wait("an mbarrier", &word(barrier), 1, parity & 1); }
