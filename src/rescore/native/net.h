// Networks of plain layers on a block of rows, there and back.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "product.h"
#include "vector.h"

namespace {  // of every library its own

inline size_t Ceil(size_t a, size_t b) { return (a + b - 1) / b; }

// Memory that outlives a call, so that no call pays for fresh pages.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  T* room(size_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = size;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Scratch of one block.
struct Work {
  Buffer<float> sums, next, parts;
};

inline Work& Scratch() {
  static thread_local Work work;
  return work;
}

struct Layer {
  int in, out;
  Parts weight;  // packed
  const float* bias;
};

// The first layer is not packed: its inputs are few. What is common to many rows is added to it.
struct Net {
  int in, width, out_dim;
  const float* first;         // [in, width]
  std::vector<Layer> hidden;  // behind the first
  const float* head;          // transposed: [out_dim, last]
  const float* head_bias;

  int widest() const {
    int size = width;
    for (const Layer& layer : hidden) size = std::max(size, layer.out);
    return size;
  }
};

// A layer that is still to be packed, from weight [in, out] or its transpose.
struct Unpacked {
  const float* weight;
  int in, out;
  Parts packed;
  bool transposed;

  int strips() const { return (transposed ? out : in) / 32; }

  void PackStrip(int k) const {
    alignas(64) float tile[32 * kTile];
    const int tiles = (transposed ? in : out) / kTile;
    for (int n = 0; n < tiles; ++n) {
      const Parts to = packed.at((static_cast<size_t>(k) * tiles + n) * kPacked);
      if (transposed) {
        const float* at = weight + static_cast<size_t>(kTile * n) * out + 32 * k;
        Transpose(at, out, tile);
        Transpose(at + kTile, out, tile + kTile * kTile);
        PackTile(tile, kTile, to);
      } else {
        PackTile(weight + 32 * k * out + kTile * n, out, to);
      }
    }
  }
};

// x [rows, in] @ layer, without its bias
template <typename Emit>
void Multiply(const Layer& layer, Parts x, int rows, const Emit& emit) {
  const size_t strip = static_cast<size_t>(layer.out) / kTile * kPacked;
  for (int c = 0; c < layer.out; c += 32)
    Product(x, layer.in, layer.weight.at(c / kTile * kPacked), strip, layer.in, rows,
            [&](int r, int j, Vec sum) { emit(r, c + j, sum); });
}

// What a block of rows enters the first layer with: share[r] + common + x[r] @ first
struct Inputs {
  const float* x;             // [rows, in]
  const float* const* share;  // [rows][width], or none
  const float* common;        // [width], or none
};

// The network on a block of rows: out [rows, out_dim]. If there is `keep`, the sums before the
// activation of hidden layer i go to keep[i], the first layer's being 0.
template <bool kMish>
void Forward(const Net& net, const Inputs& inputs, int rows, float* out, float* const* keep) {
  const int widest = net.widest(), depth = net.hidden.size();
  float *values = Scratch().sums.room(kRows * widest), *next = Scratch().next.room(kRows * widest);
  Parts parts = PartsIn(values, kRows * widest), next_parts = PartsIn(next, kRows * widest);
  int size = net.width;
  const auto put = [&](int i, int r, int c, Vec sum) {
    const int at = r * size + c;
    if (keep) Store(keep[i] + at, sum);
    const Vec value = Activate<kMish>(sum);
    if (i < depth)
      Split(value, next_parts.at(at));
    else
      Store(next + at, value);  // the head takes them whole
  };
  Plain(inputs.x, net.in, 1, net.first, size, net.in, rows, size, [&](int r, int c, Vec sum) {
    if (inputs.share) sum += Load(inputs.share[r] + c);
    if (inputs.common) sum += Load(inputs.common + c);
    put(0, r, c, sum);
  });
  for (int i = 0; i < depth; ++i) {
    const Layer& layer = net.hidden[i];
    size = layer.out;
    std::swap(parts, next_parts);
    std::swap(values, next);
    Multiply(layer, parts, rows,
             [&](int r, int c, Vec sum) { put(i + 1, r, c, sum + Load(layer.bias + c)); });
  }
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < net.out_dim; ++j) {
      Vec sum = {};
      for (int c = 0; c < size; c += kLanes)
        sum += Load(next + r * size + c) * Load(net.head + j * size + c);
      out[r * net.out_dim + j] = Sum(sum) + net.head_bias[j];
    }
}

// What the gradient of a packed layer's weights needs: its inputs transposed, derivatives by its
// sums packed. Rows are padded with zeros to whole blocks.
struct Factors {
  int in, out;
  Parts inputs;   // [in, padded]
  Parts outputs;  // [padded, out], packed
  float* deltas;  // [padded, out]: derivatives of the loss by the sums
};

// Derivatives of a block of rows by all sums, from the head to the first layer's: delta [rows, width].
template <bool kMish>
void Backward(const Net& net, const std::vector<Layer>& transposed, const float* const* sums,
              const float* grad, int row, int rows, int padded, const std::vector<Factors>& factors,
              float* first_delta) {
  const int depth = transposed.size(), widest = net.widest();
  float *delta = Scratch().sums.room(kRows * widest), *next = Scratch().next.room(kRows * widest);
  float* room = Scratch().parts.room(kRows * widest);
  int size = depth ? net.hidden[depth - 1].out : net.width;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < size; c += kLanes) {
      Vec x = {};
      for (int j = 0; j < net.out_dim; ++j)
        x += grad[r * net.out_dim + j] * Load(net.head + j * size + c);
      Store(next + r * size + c, x);
    }
  // A pass of its own: within the product, the slope's many constants would push sums from registers.
  const auto steepen = [&](int i, float* to) {
    for (int at = 0; at < rows * size; at += kLanes)
      Store(to + at, Load(next + at) * Slope<kMish>(Load(sums[i] + at)));
  };
  for (int i = depth; i > 0; --i) {  // from the sums of layer i to those before it
    steepen(i, delta);
    std::memset(delta + rows * size, 0, sizeof(float) * (kRows - rows) * size);
    if (!factors.empty()) {
      const Factors& f = factors[i - 1];
      std::memcpy(f.deltas + static_cast<size_t>(row) * size, delta, sizeof(float) * rows * size);
      for (int n = 0; n < size / kTile; ++n) {
        const size_t at = (static_cast<size_t>(row / 32) * (size / kTile) + n) * kPacked;
        PackTile(delta + kTile * n, size, f.outputs.at(at));
      }
      alignas(64) float tile[kTile * kTile], turned[kTile * kTile];
      for (int half = 0; half < kRows; half += kTile)
        for (int c = 0; c < f.in; c += kTile) {
          for (int r = 0; r < kTile; ++r)
            for (int j = 0; j < kTile; j += kLanes) {
              const float* from = sums[i - 1] + (half + r) * f.in + c + j;
              Store(tile + kTile * r + j, half + r < rows ? Activate<kMish>(Load(from)) : Vec{});
            }
          Transpose(tile, kTile, turned);
          for (int k = 0; k < kTile; ++k)
            for (int j = 0; j < kTile; j += kLanes) {
              const size_t at = static_cast<size_t>(c + k) * padded + row + half + j;
              Split(Load(turned + kTile * k + j), f.inputs.at(at));
            }
        }
    }
    const Layer& layer = transposed[i - 1];
    const Parts parts = PartsOf(delta, kRows * size, room);
    size = layer.out;
    Multiply(layer, parts, rows, [&](int r, int c, Vec sum) { Store(next + r * size + c, sum); });
  }
  steepen(0, first_delta);
}

// Gradients of the head [size, out_dim] and its bias, from the sums [M, size] before it.
template <bool kMish>
void BackwardHead(const float* sums, const float* grad, int M, int size, int out_dim,
                  float* transposed, float* weight, float* bias) {
  std::memset(transposed, 0, sizeof(float) * size * out_dim);
  std::memset(bias, 0, sizeof(float) * out_dim);
  for (int r = 0; r < M; ++r) {
    for (int j = 0; j < out_dim; ++j) bias[j] += grad[r * out_dim + j];
    for (int c = 0; c < size; c += kLanes) {
      const Vec h = Activate<kMish>(Load(sums + static_cast<size_t>(r) * size + c));
      for (int j = 0; j < out_dim; ++j) {
        float* at = transposed + j * size + c;
        Store(at, Load(at) + grad[r * out_dim + j] * h);
      }
    }
  }
  for (int j = 0; j < out_dim; ++j)
    for (int c = 0; c < size; ++c) weight[c * out_dim + j] = transposed[j * size + c];
}

// Derivatives by `count` inputs of the first layer, from those by its sums: delta [rows, width] times
// weight [count, width] transposed. to [rows, count]
inline void BackwardFirst(const float* delta, const float* weight, int rows, int count, int width,
                          float* to) {
  constexpr int kAtOnce = 4;
  for (int i = 0; i < count; i += kAtOnce)
    for (int r = 0; r < rows; ++r) {
      Vec sums[kAtOnce] = {};
      const float* w[kAtOnce];  // the last one again, where there are fewer
      for (int j = 0; j < kAtOnce; ++j) w[j] = weight + std::min(i + j, count - 1) * width;
      for (int c = 0; c < width; c += kLanes) {
        const Vec x = Load(delta + r * width + c);
        for (int j = 0; j < kAtOnce; ++j) sums[j] += x * Load(w[j] + c);
      }
      for (int j = 0; j < kAtOnce && i + j < count; ++j) to[r * count + i + j] = Sum(sums[j]);
    }
}

// The sum of M rows [size], which are ld apart, in 32 columns.
inline void SumRows(const float* rows, size_t M, size_t ld, float* to) {
  for (int c = 0; c < 32; c += kLanes) {
    Vec sum = {};
    for (size_t r = 0; r < M; ++r) sum += Load(rows + r * ld + c);
    Store(to + c, sum);
  }
}

}  // namespace
