// A launch of the kernels of `entries.cu`.
extern "C" void launch(const char *name, const Reduction *given, int blocks, int threads) {
    const Exchange &exchanged = *reinterpret_cast<const Exchange *>(given);
    if (name == std::string("exchange")) return in_turn(blocks, threads, [&] { exchange(exchanged); });
    if (name == std::string("exchange_runs")) return in_turn(blocks, threads, [&] { exchange_runs(exchanged); });
    using Kernel = void (*)(const Reduction);
#define KERNEL(name) {#name, name}
    const std::pair<std::string, Kernel> kernels[] = {
        KERNEL(reduce_entries_0), KERNEL(reduce_entries_1), KERNEL(reduce_entries_2), KERNEL(reduce_entries_3),
        KERNEL(reduce_entries_4), KERNEL(reduce_entries_5), KERNEL(reduce_entries_6), KERNEL(reduce_quads_1_1),
        KERNEL(reduce_quads_1_2), KERNEL(reduce_quads_2_1), KERNEL(reduce_quads_2_2), KERNEL(reduce_quads_3_1),
        KERNEL(reduce_quads_3_2), KERNEL(reduce_apart_1_1), KERNEL(reduce_apart_1_2), KERNEL(reduce_apart_2_1),
        KERNEL(reduce_apart_2_2), KERNEL(reduce_apart_3_1), KERNEL(reduce_apart_3_2),
#ifndef DOUBLE
        KERNEL(reduce_chain_4),
#endif
        KERNEL(reduce_chain_2),   KERNEL(reduce_chain_3),   KERNEL(reduce_terms),
        KERNEL(gather),           KERNEL(relay),            KERNEL(carry)};
    const Kernel kernel = std::find_if(std::begin(kernels), std::end(kernels), [&](auto &each) {
                              return each.first == name;
                          })->second;
    if (kernel == carry || kernel == gather || kernel == relay)
        in_turn(blocks, threads, [&] { kernel(*given); });
    else
        for_all(blocks, 1, threads, [&] { kernel(*given); });
}
