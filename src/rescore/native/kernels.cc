// Networks and their gradients, and random numbers, as XLA calls them: on matrix or vector units of
// x86 processors. A block of rows passes through all layers, and through all steps of a reverse
// process, without leaving the cache.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "net.h"
#include "team.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::U32>;

// Operands carry leading axes when a call is mapped over seeds; they are walked through here.
struct Operand {
  const float* data;
  std::vector<int64_t> shape;  // without the leading axes
  size_t stride = 1;           // elements of one call
  size_t calls = 1;            // product of the leading axes
  const float* at(size_t call) const { return data + call * stride; }
};

Operand Take(const Floats& buffer, size_t rank) {
  const auto dims = buffer.dimensions();
  Operand operand;
  operand.data = buffer.typed_data();
  for (size_t i = 0; i + rank < dims.size(); ++i) operand.calls *= dims[i];
  for (size_t i = dims.size() - rank; i < dims.size(); ++i) {
    operand.shape.push_back(dims[i]);
    operand.stride *= dims[i];
  }
  return operand;
}

// Operands of the layers behind the first: weight and bias of each, the head last.
struct Rest {
  std::vector<Operand> weights, biases;
};

ffi::Error TakeRest(ffi::RemainingArgs& args, bool ensemble, Rest& rest, size_t first = 0) {
  for (size_t i = first; i + 1 < args.size(); i += 2) {
    auto weight = args.get<Floats>(i), bias = args.get<Floats>(i + 1);
    if (weight.has_error()) return weight.error();
    if (bias.has_error()) return bias.error();
    rest.weights.push_back(Take(*weight, 2 + ensemble));
    rest.biases.push_back(Take(*bias, 1 + ensemble));
  }
  return ffi::Error::Success();
}

// The head of a network, transposed to [out, in].
void TurnHead(const float* weight, int in, int out, float* to) {
  for (int j = 0; j < out; ++j)
    for (int c = 0; c < in; ++c) to[j * in + c] = weight[c * out + j];
}

// The n networks of each call, whose hidden layers are still to be packed. `first` has the weights of
// the inputs that are a row's own. Memory is this thread's, until it builds again.
std::vector<Net> Build(const Operand& first, const Rest& rest, size_t calls, size_t n,
                       bool ensemble, std::vector<Unpacked>& unpacked) {
  thread_local Buffer<float> kept_packed, kept_heads;
  size_t size = 0;
  for (const Operand& w : rest.weights) size += w.shape[ensemble] * w.shape[ensemble + 1];
  float *packed = kept_packed.room(size * calls * n), *heads = kept_heads.room(size * calls * n);
  const int own = first.shape[ensemble], width = first.shape[ensemble + 1];
  std::vector<Net> nets;
  for (size_t which = 0; which < calls * n; ++which) {
    const size_t call = which / n, member = which % n;
    Net net{own, width, 0, first.at(call) + member * own * width, {}, heads, nullptr};
    for (size_t i = 0; i < rest.weights.size(); ++i) {
      const Operand &w = rest.weights[i], &b = rest.biases[i];
      const int in = w.shape[ensemble], out = w.shape[ensemble + 1];
      const float* weight = w.at(call) + member * in * out;
      const float* bias = b.at(call) + member * out;
      if (i + 1 < rest.weights.size()) {
        const Parts parts = PartsIn(packed, in * out);
        unpacked.push_back({weight, in, out, parts, false});
        net.hidden.push_back({in, out, parts, bias});
        packed += in * out;
      } else {
        TurnHead(weight, in, out, heads);
        net.out_dim = out, net.head_bias = bias;
        heads += in * out;
      }
    }
    nets.push_back(std::move(net));
  }
  return nets;
}

// Packs the layers, and does `more` blocks of other work beside.
template <typename Run>
void PackAll(const std::vector<Unpacked>& layers, size_t more, const Run& run) {
  std::vector<std::pair<const Unpacked*, int>> strips;
  for (const Unpacked& layer : layers)
    for (int k = 0; k < layer.strips(); ++k) strips.emplace_back(&layer, k);
  ForBlocks(strips.size() + more, [&](size_t i) {
    if (i < more)
      run(i);
    else
      strips[i - more].first->PackStrip(strips[i - more].second);
  });
}

// Packs the layers; beside it, the share of R states in the first layer of n networks per call:
// obs [R, size] @ weight [n, size, width] + bias [n, width], in memory of this thread.
const float* PackAndShare(const std::vector<Unpacked>& layers, const Operand& obs,
                          const Operand& weight, const Operand& bias, size_t n) {
  thread_local Buffer<float> kept;
  const size_t R = obs.shape[0], size = obs.shape[1], width = bias.shape.back();
  const size_t per_net = Ceil(R, kRows);
  float* share = kept.room(obs.calls * n * R * width);
  PackAll(layers, obs.calls * n * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const size_t call = which / n, member = which % n;
    float* to = share + (which * R + row) * width;
    const float* add = bias.at(call) + member * width;
    Plain(obs.at(call) + row * size, size, 1, weight.at(call) + member * size * width, width, size,
          std::min<size_t>(kRows, R - row), width,
          [&](int r, int c, Vec sum) { Store(to + r * width + c, sum + Load(add + c)); });
  });
  return share;
}

// values(obs [R, size], actions [M, d], obs_weight [N, size, width], bias [N, width],
// act_weight [N, d, width], rest...) of the first n of N networks with one output: [n, M]. Row m has
// the state of m modulo R.
ffi::Error Values(bool mish, Floats obs_, Floats actions_, Floats obs_weight_, Floats bias_,
                  Floats act_weight_, ffi::RemainingArgs args, ffi::Result<Floats> out_) {
  const Operand obs = Take(obs_, 2), actions = Take(actions_, 2);
  const Operand obs_weight = Take(obs_weight_, 3), bias = Take(bias_, 2);
  const Operand act_weight = Take(act_weight_, 3);
  Rest rest;
  if (auto error = TakeRest(args, true, rest); error.failure()) return error;
  const auto shape = out_->dimensions();
  if (shape[shape.size() - 2] > bias.shape[0])
    return ffi::Error::InvalidArgument("more networks are asked for than there are");
  const size_t n = shape[shape.size() - 2], width = bias.shape[1], R = obs.shape[0];
  const size_t M = actions.shape[0], d = actions.shape[1], calls = actions.calls;
  std::vector<Unpacked> unpacked;
  const std::vector<Net> nets = Build(act_weight, rest, calls, n, true, unpacked);
  const float* share = PackAndShare(unpacked, obs, obs_weight, bias, n);
  float* out = out_->typed_data();
  const size_t per_net = Ceil(M, kRows);
  ForBlocks(calls * n * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = share + (which * R + (row + r) % R) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(nets[which], {actions.at(which / n) + row * d, shares, nullptr}, rows,
            out + which * M + row, nullptr);
  });
  return ffi::Error::Success();
}

// reverse(obs [R, size], times [steps, width], start [M, d], noise [steps, M, d],
// coefficients [steps, 5], obs_weight [size, width], bias [width], act_weight [d, width], rest...) of
// a noise network: [M, d]. A step is
//   a_0 = clip(k_0 a + k_1 eps, inner);  a <- clip(k_2 a_0 + k_3 a + k_4 noise, outer)
ffi::Error Reverse(bool mish, float inner, float outer, Floats obs_, Floats times_, Floats start_,
                   Floats noise_, Floats coefficients_, Floats obs_weight_, Floats bias_,
                   Floats act_weight_, ffi::RemainingArgs args, ffi::Result<Floats> out_) {
  const Operand obs = Take(obs_, 2), times = Take(times_, 2), start = Take(start_, 2);
  const Operand noise = Take(noise_, 3), coefficients = Take(coefficients_, 2);
  const Operand obs_weight = Take(obs_weight_, 2), bias = Take(bias_, 1);
  const Operand act_weight = Take(act_weight_, 2);
  Rest rest;
  if (auto error = TakeRest(args, false, rest); error.failure()) return error;
  const size_t R = obs.shape[0], width = bias.shape[0], steps = times.shape[0];
  const size_t M = start.shape[0], d = start.shape[1], calls = start.calls;
  std::vector<Unpacked> unpacked;
  const std::vector<Net> nets = Build(act_weight, rest, calls, 1, false, unpacked);
  const float* share = PackAndShare(unpacked, obs, obs_weight, bias, 1);
  float* out = out_->typed_data();
  const size_t per_call = Ceil(M, kRows);
  ForBlocks(calls * per_call, [&](size_t block) {
    const size_t call = block / per_call, row = block % per_call * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = share + (call * R + (row + r) % R) * width;
    float* a = out + call * M * d + row * d;
    std::memcpy(a, start.at(call) + row * d, sizeof(float) * rows * d);
    std::vector<float> eps(kRows * d);
    const auto forward = mish ? Forward<true> : Forward<false>;
    const auto clip = [](float x, float limit) { return std::min(std::max(x, -limit), limit); };
    for (size_t step = 0; step < steps; ++step) {
      forward(nets[call], {a, shares, times.at(call) + step * width}, rows, eps.data(), nullptr);
      const float* k = coefficients.at(call) + 5 * step;
      const float* z = noise.at(call) + (step * M + row) * d;
      for (size_t i = 0; i < rows * d; ++i) {
        const float a_0 = clip(k[0] * a[i] + k[1] * eps[i], inner);
        a[i] = clip(k[2] * a_0 + k[3] * a[i] + k[4] * z[i], outer);
      }
    }
  });
  return ffi::Error::Success();
}

ffi::Error TakeResults(ffi::RemainingRets& rets, std::vector<float*>& results) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<Floats>(i);
    if (buffer.has_error()) return buffer.error();
    results.push_back((*buffer)->typed_data());
  }
  return ffi::Error::Success();
}

// keep(base [n, M or 0, width], x [n, M, in], weight [n, in, width], bias [n, width], rest...) of n
// networks, whose first layer has base + x @ weight + bias: out [n, M, out_dim], and the sums before
// the activation of each hidden layer, [n, M, size].
ffi::Error Keep(bool mish, Floats base_, Floats x_, Floats weight_, Floats bias_,
                ffi::RemainingArgs args, ffi::Result<Floats> out_, ffi::RemainingRets rets) {
  const Operand base = Take(base_, 3), x = Take(x_, 3);
  const Operand weight = Take(weight_, 3), bias = Take(bias_, 2);
  Rest rest;
  if (auto error = TakeRest(args, true, rest); error.failure()) return error;
  std::vector<float*> kept;
  if (auto error = TakeResults(rets, kept); error.failure()) return error;
  const size_t n = x.shape[0], M = x.shape[1], in = x.shape[2], width = bias.shape[1];
  std::vector<Unpacked> unpacked;
  const std::vector<Net> nets = Build(weight, rest, x.calls, n, true, unpacked);
  PackAll(unpacked, 0, [](size_t) {});
  float* out = out_->typed_data();
  const size_t per_net = Ceil(M, kRows);
  ForBlocks(nets.size() * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const Net& net = nets[which];
    const size_t at = which * M + row;
    std::vector<float*> keep = {kept[0] + at * width};
    for (size_t i = 0; i < net.hidden.size(); ++i)
      keep.push_back(kept[i + 1] + at * net.hidden[i].out);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = base.data + (at + r) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(net, {x.data + at * in, base.shape[1] ? shares : nullptr, bias.data + which * width},
            rows, out + at * net.out_dim, keep.data());
  });
  return ffi::Error::Success();
}

// pull(grad [n, M, out_dim], x [n, M, in], weight [n, in, width], kept sums..., rest...): of these
// derivatives those that are asked for: by base [n, M, width]; by the columns of x from begin to end;
// by weight and bias of each layer.
ffi::Error Pull(bool mish, bool of_base, bool of_weights, int begin, int end, Floats grad_,
                Floats x_, Floats weight_, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const Operand grad = Take(grad_, 3), x = Take(x_, 3), weight = Take(weight_, 3);
  const size_t n = x.shape[0], M = x.shape[1], in = x.shape[2], width = weight.shape[2];
  const size_t depth = args.size() / 3 - 1;  // sums, weight and bias of each hidden layer
  std::vector<const float*> sums;
  for (size_t i = 0; i <= depth; ++i) {
    auto kept = args.get<Floats>(i);
    if (kept.has_error()) return kept.error();
    sums.push_back(kept->typed_data());
  }
  Rest rest;
  if (auto error = TakeRest(args, true, rest, depth + 1); error.failure()) return error;
  std::vector<float*> results;
  if (auto error = TakeResults(rets, results); error.failure()) return error;
  const size_t padded = Ceil(M, kRows) * kRows, count = x.calls * n, per_net = padded / kRows;
  thread_local Buffer<float> kept_parts, kept_floats;
  size_t parts = 0, floats = M * width;
  for (size_t i = 0; i < depth; ++i) {
    const size_t from = rest.weights[i].shape[1], to = rest.weights[i].shape[2];
    parts += from * to + (of_weights ? padded * (from + to) : 0);
    floats += padded * to;
  }
  const size_t last = rest.weights[depth].shape[1], out_dim = rest.weights[depth].shape[2];
  float* part_room = kept_parts.room(count * parts);
  float* float_room = kept_floats.room(count * (floats + 2 * last * out_dim));
  const auto take = [](float*& room, size_t size) {
    room += size;
    return room - size;
  };
  const auto take_parts = [&](size_t size) { return PartsIn(take(part_room, size), size); };
  float* deltas = of_base ? results[0] : take(float_room, count * M * width);  // of the first layer
  std::vector<Net> nets(count);
  std::vector<std::vector<Layer>> transposed(count);
  std::vector<std::vector<Factors>> factors(count);
  std::vector<Unpacked> unpacked;
  for (size_t which = 0; which < count; ++which) {
    Net& net = nets[which];
    const size_t call = which / n, member = which % n;
    net.width = width, net.out_dim = out_dim;
    for (size_t i = 0; i < depth; ++i) {
      const size_t from = rest.weights[i].shape[1], to = rest.weights[i].shape[2];
      const Parts turned = take_parts(from * to);
      net.hidden.push_back({int(from), int(to), {}, nullptr});
      unpacked.push_back(
          {rest.weights[i].at(call) + member * from * to, int(from), int(to), turned, true});
      transposed[which].push_back({int(to), int(from), turned, nullptr});
      if (!of_weights) continue;
      Factors f;
      f.in = from, f.out = to;
      f.inputs = take_parts(from * padded), f.outputs = take_parts(to * padded);
      f.deltas = take(float_room, padded * to);
      factors[which].push_back(f);
    }
    float* head = take(float_room, last * out_dim);
    TurnHead(rest.weights[depth].at(call) + member * last * out_dim, last, out_dim, head);
    net.head = head;
  }
  PackAll(unpacked, 0, [](size_t) {});
  ForBlocks(count * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const size_t at = which * M + row;
    std::vector<const float*> own = {sums[0] + at * width};
    for (size_t i = 0; i < depth; ++i) own.push_back(sums[i + 1] + at * nets[which].hidden[i].out);
    const auto backward = mish ? Backward<true> : Backward<false>;
    backward(nets[which], transposed[which], own.data(), grad.data + at * out_dim, row, rows,
             padded, factors[which], deltas + at * width);
    if (end > begin)
      BackwardFirst(deltas + at * width, weight.data + (which * in + begin) * width, rows,
                    end - begin, width, results[of_base] + at * (end - begin));
  });
  if (!of_weights) return ffi::Error::Success();
  float* const* grads = results.data() + of_base + (end > begin);  // weight, bias, layer by layer
  std::vector<size_t> tiles = {width / 32};               // of a network's layers
  for (size_t i = 0; i < depth; ++i)
    tiles.push_back(rest.weights[i].shape[1] / 32 * (rest.weights[i].shape[2] / 32));
  size_t all = 1;  // the head's block is the longest: it comes first, from whichever end
  for (size_t more : tiles) all += more;
  ForBlocks(count * all, [&](size_t block) {
    const size_t which = block / all;
    size_t tile = 2 * which < count ? block % all : all - 1 - block % all, i = 0;
    if (tile-- == 0) {
      const auto head = mish ? BackwardHead<true> : BackwardHead<false>;
      return head(sums[depth] + which * M * last, grad.data + which * M * out_dim, M, last, out_dim,
                  float_room + which * last * out_dim, grads[2 * depth + 2] + which * last * out_dim,
                  grads[2 * depth + 3] + which * out_dim);
    }
    while (tile >= tiles[i]) tile -= tiles[i++];
    if (i == 0) {
      const size_t column = 32 * tile;
      const float* delta = deltas + which * M * width + column;
      float* to = grads[0] + which * in * width + column;
      Plain(x.data + which * M * in, 1, in, delta, width, M, in, 32,
            [&](int r, int c, Vec sum) { Store(to + r * width + c, sum); });
      return SumRows(delta, M, width, grads[1] + which * width + column);
    }
    const Factors& f = factors[which][i - 1];
    const int row = tile / (f.out / 32) * 32, column = tile % (f.out / 32) * 32;
    float* to = grads[2 * i] + (which * f.in + row) * f.out + column;
    Product(f.inputs.at(row * padded), padded, f.outputs.at(column / kTile * kPacked),
            static_cast<size_t>(f.out) / kTile * kPacked, padded, kRows,
            [&](int r, int c, Vec sum) { Store(to + r * f.out + c, sum); });
    if (row == 0)
      SumRows(f.deltas + column, M, f.out, grads[2 * i + 1] + which * f.out + column);
  });
  return ffi::Error::Success();
}

// normal(key [2]) and uniform(key [2]): the numbers of jax.random, the first up to rounding. [size]
template <bool kNormal>
ffi::Error Draw(Words key_, ffi::Result<Floats> out_) {
  const auto* key = key_.typed_data();
  float* out = out_->typed_data();
  const size_t calls = key_.element_count() / 2, size = out_->dimensions().back();
  Bits lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (size_t call = 0; call < calls; ++call)
    for (size_t i = 0; i < size; i += kLanes) {
      const Bits bits = Threefry(lane + static_cast<uint32_t>(i), key[2 * call], key[2 * call + 1]);
      Vec x = reinterpret_cast<Vec>((bits >> 9) | 0x3F800000u) - 1.0f;
      if constexpr (kNormal) {
        constexpr float kLow = -0.99999994f;
        const Vec u = x * 2.0f + kLow;
        x = InverseErf(u < kLow ? All(kLow) : u) * 1.41421356f;
      }
      std::memcpy(out + call * size + i, &x, sizeof(float) * std::min<size_t>(kLanes, size - i));
    }
  return ffi::Error::Success();
}

}  // namespace

// Whether this process may use the units: the kernel of the system grants tiles on request.
extern "C" int rescore_units() {
#ifdef __AMX_BF16__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return 1;
#endif
}

// How many threads share a kernel's work; to be said before the first one runs.
extern "C" void rescore_threads(int count) { threads = std::max(count, 1); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_values, Values,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_reverse, Reverse,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Attr<float>("inner")
                                  .Attr<float>("outer")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_keep, Keep,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_pull, Pull,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Attr<bool>("base")
                                  .Attr<bool>("weights")
                                  .Attr<int>("begin")
                                  .Attr<int>("end")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_uniform, Draw<false>,
                              ffi::Ffi::Bind().Arg<Words>().Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_normal, Draw<true>,
                              ffi::Ffi::Bind().Arg<Words>().Ret<Floats>());
