// What `many.cu` needs beside `cuda.h`.
struct alignas(16) float4 {
    float x, y, z, w;
};

template <class T> static T __ldcg(const T *at) { return *at; }

