
// Launches of the kernels in the source above.
extern "C" void launch(const char *name, const Run *given, int first, int blocks_x, int blocks_y, int threads) {
    void (*kernel)(int) = nullptr;
    if (!std::strcmp(name, "propagate_few")) kernel = propagate_few;
    if (!std::strcmp(name, "contract_many")) kernel = contract_many;
    if (!std::strcmp(name, "rest_many")) kernel = rest_many;
#ifdef MAXIMA
    if (!std::strcmp(name, "trace_many")) kernel = trace_many;
    if (!std::strcmp(name, "trace_some")) kernel = trace_some;
    if (!std::strcmp(name, "trace_few")) kernel = trace_few;
#endif
    run = *given;
    for_all(blocks_x, blocks_y, threads, [&] { kernel(first); });
}

extern "C" void launch_write(const char *name, const Run *given, int blocks, int threads) {
#ifdef MAXIMA
    void (*kernel)(const Run *) = write_states;
#else
    void (*kernel)(const Run *) = score_double;
    if (!std::strcmp(name, "write_single")) kernel = write_single;
    if (!std::strcmp(name, "write_double")) kernel = write_double;
    if (!std::strcmp(name, "score_single")) kernel = score_single;
#endif
    // Those of the next block may be there by now.
    std::memset(&run, 0, sizeof run);
    for_all(blocks, 1, threads, [&] { kernel(given); });
}
