// What `components.cu` needs beside `cuda.h`.
struct int4 {
    int x, y, z, w;
};
// ---
extern "C" void launch(const char *name, int blocks, int threads, const Block *block) {
    if (!std::strcmp(name, "multiply"))
        in_turn(blocks, threads, [&] { multiply(*block); });
    else if (!std::strcmp(name, "weigh"))
        in_turn(blocks, threads, [&] { weigh(*block); });
    else if (!std::strcmp(name, "add_pieces"))
        in_turn(blocks, threads, [&] { add_pieces(*block); });
    else if (!std::strcmp(name, "add_units"))
        for_all(blocks, 1, threads, [&] { add_units(*block); });
    else
        std::abort();
}
