// libcudnn: convolutions, normalisation and pooling. Workspaces are 0 bytes, so the memory that the
// real library asks for is not counted. Recurrent networks are refused: their weights have a layout.
#include "hostcuda/mathlibs/src/stand_in.h"

#include <algorithm>
#include <vector>

const int stand_in::not_supported = 3000, stand_in::not_initialized = 1001;  // cudnnStatus_t

namespace {

struct descriptor {
  int type = 0, format = 0;
  std::vector<int> sizes, strides;
};

int create(void *out) {
  return stand_in::create<descriptor>(out);
}
int no_bytes(std::size_t *out) {
  *out = 0;
  return 0;
}
void copy_out(const std::vector<int> &from, int most, int *to) {
  if (to == nullptr) return;
  std::copy_n(from.begin(), std::min(from.size(), static_cast<std::size_t>(std::max(most, 0))), to);
}

constexpr int bad_param = 2000;
constexpr int most_dimensions = 8;

// cudnnBackendAttributeName_t
enum attribute_name {
  engine_heuristic_results = 202,
  engine_knobs = 1302,
  engine_numerical_notes = 1303,
  engine_behaviour_notes = 1305,
};
// cudnnBackendAttributeType_t: the bytes of a value. 0: descriptors, which the caller has made.
std::size_t bytes_of(int type) {
  switch (type) {
    case 15:
      return 0;  // descriptors
    case 24:
      return 1;  // characters
    case 2:
      return 1;  // booleans
    case 0:
    case 3:
    case 5:
    case 6:
      return 8;  // pointers and 64-bit numbers
    case 26:
      return 16;  // fractions
    default:
      return 4;
  }
}

}  // namespace

STAND_IN std::size_t cudnnGetVersion() {
  return 91002;
}
STAND_IN std::size_t cudnnGetCudartVersion() {
  return 13000;
}
STAND_IN int cudnnGetProperty(int which, int *value) {
  constexpr int version[] = {9, 10, 2};
  if (which < 0 || which > 2) return bad_param;
  *value = version[which];
  return 0;
}
STAND_IN const char *cudnnGetErrorString(int) {
  return "error of hostcuda's stand-in of cuDNN";
}
STAND_IN void cudnnGetLastErrorString(char *out, std::size_t bytes) {
  if (bytes != 0) *out = '\0';
}

STAND_IN int cudnnCreate(void **out) {
  return stand_in::create<stand_in::handle>(out);
}
STAND_IN int cudnnDestroy(void *h) {
  return stand_in::destroy<stand_in::handle>(h);
}
STAND_IN int cudnnSetStream(stand_in::handle *h, void *stream) {
  h->stream = stream;
  return 0;
}
STAND_IN int cudnnGetStream(const stand_in::handle *h, void **stream) {
  *stream = h->stream;
  return 0;
}

// ---- descriptors ----

#define DESCRIPTOR(name)                       \
  STAND_IN int cudnnCreate##name(void **out) { \
    return create(out);                        \
  }                                            \
  STAND_IN int cudnnDestroy##name(void *d) {   \
    return stand_in::destroy<descriptor>(d);   \
  }
DESCRIPTOR(ActivationDescriptor)
DESCRIPTOR(CTCLossDescriptor)
DESCRIPTOR(ConvolutionDescriptor)
DESCRIPTOR(DropoutDescriptor)
DESCRIPTOR(FilterDescriptor)
DESCRIPTOR(LRNDescriptor)
DESCRIPTOR(PoolingDescriptor)
DESCRIPTOR(RNNDataDescriptor)
DESCRIPTOR(RNNDescriptor)
DESCRIPTOR(ReduceTensorDescriptor)
DESCRIPTOR(SpatialTransformerDescriptor)
DESCRIPTOR(TensorDescriptor)
#undef DESCRIPTOR

STAND_IN int cudnnSetTensorNdDescriptor(descriptor *d, int type, int count, const int *sizes,
                                        const int *strides) {
  if (count < 0 || count > most_dimensions) return bad_param;
  d->type = type;
  d->sizes.assign(sizes, sizes + count);
  d->strides.assign(strides, strides + count);
  return 0;
}
STAND_IN int cudnnGetTensorNdDescriptor(const descriptor *d, int most, int *type, int *count,
                                        int *sizes, int *strides) {
  *type = d->type;
  *count = static_cast<int>(d->sizes.size());
  copy_out(d->sizes, most, sizes);
  copy_out(d->strides, most, strides);
  return 0;
}
STAND_IN int cudnnSetFilterNdDescriptor(descriptor *d, int type, int format, int count,
                                        const int *sizes) {
  if (count < 0 || count > most_dimensions) return bad_param;
  d->type = type;
  d->format = format;
  d->sizes.assign(sizes, sizes + count);
  return 0;
}
STAND_IN int cudnnGetFilterNdDescriptor(const descriptor *d, int most, int *type, int *format,
                                        int *count, int *sizes) {
  *type = d->type;
  *format = d->format;
  *count = static_cast<int>(d->sizes.size());
  copy_out(d->sizes, most, sizes);
  return 0;
}

// ---- the graph interface: one engine for every operation, without notes or knobs ----

STAND_IN int cudnnBackendCreateDescriptor(int, void **out) {
  return create(out);
}
STAND_IN int cudnnBackendDestroyDescriptor(void *d) {
  return stand_in::destroy<descriptor>(d);
}
STAND_IN int cudnnBackendGetAttribute(void *, int name, int type, std::int64_t asked,
                                      std::int64_t *count, void *values) {
  std::int64_t there = std::max<std::int64_t>(asked, 1);
  if (name == engine_heuristic_results || type == 24) there = 1;
  if (name == engine_knobs || name == engine_numerical_notes || name == engine_behaviour_notes) {
    there = 0;
  }
  if (count != nullptr) *count = there;
  if (values != nullptr && asked > 0) {
    std::memset(values, 0, static_cast<std::size_t>(std::min(asked, there)) * bytes_of(type));
  }
  return 0;
}

// ---- sizes ----

STAND_IN int cudnnDropoutGetStatesSize(void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *, int, int, void *,
                                                                      void *, void *, void *,
                                                                      void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *, int, int, void *, void *,
                                                               void *, void *, void *, void *,
                                                               void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *, int, int, void *, void *,
                                                                  std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetCTCLossWorkspaceSize(void *, void *, void *, const int *, const int *,
                                          const int *, int, void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetCTCLossWorkspaceSize_v8(void *, int, void *, void *, void *,
                                             std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetReductionIndicesSize(void *, void *, void *, void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
STAND_IN int cudnnGetReductionWorkspaceSize(void *, void *, void *, void *, std::size_t *bytes) {
  return no_bytes(bytes);
}
#define CONVOLUTION_WORKSPACE(name)                                                    \
  STAND_IN int name(void *, void *, void *, void *, void *, int, std::size_t *bytes) { \
    return no_bytes(bytes);                                                            \
  }
CONVOLUTION_WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize)
CONVOLUTION_WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
CONVOLUTION_WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)
#undef CONVOLUTION_WORKSPACE

STAND_IN_REFUSES(cudnnFindConvolutionBackwardDataAlgorithmEx)
STAND_IN_REFUSES(cudnnFindConvolutionBackwardFilterAlgorithmEx)
STAND_IN_REFUSES(cudnnFindConvolutionForwardAlgorithmEx)
STAND_IN_REFUSES(cudnnGetConvolutionBackwardDataAlgorithm_v7)
STAND_IN_REFUSES(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
STAND_IN_REFUSES(cudnnGetConvolutionForwardAlgorithm_v7)
STAND_IN_REFUSES(cudnnGetRNNTempSpaceSizes)
STAND_IN_REFUSES(cudnnGetRNNWeightParams)
STAND_IN_REFUSES(cudnnGetRNNWeightSpaceSize)

#include "hostcuda/mathlibs/src/cudnn_names.h"
