// Bring words that lie in pinned memory of the host, which the device sees at the same address, to an array of the device.
//
// Grid n / 1024, block 256: 16 bytes a thread. The next kernel may not begin before this one is done: those of a pass read the
// batch before they wait. A copy engine would do the same, but what comes after it begins 5 us later.
// Bytes: 8 a word.
extern "C" __global__ void __launch_bounds__(256) upload(unsigned long long source, int* to, int n) {
    const int i = 4 * (256 * blockIdx.x + threadIdx.x);
    if (i < n) *(int4*)(to + i) = *(const int4*)(source + 4ull * i);
}
