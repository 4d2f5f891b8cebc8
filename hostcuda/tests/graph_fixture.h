// Graphs that a test builds node by node.
#pragma once

#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {

class graph_fixture : public machine_test {
 protected:
  static CUgraph make() {
    CUgraph g = nullptr;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    return g;
  }

  static CUgraphNode host(CUgraph g, note *n, const std::vector<CUgraphNode> &after = {}) {
    CUgraphNode node = nullptr;
    const CUDA_HOST_NODE_PARAMS p{write_note, n};
    EXPECT_EQ(cuGraphAddHostNode(&node, g, after.data(), after.size(), &p), CUDA_SUCCESS);
    return node;
  }
};

}  // namespace hostcuda_tests
