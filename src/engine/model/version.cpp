#include "sluice/version.hpp"

namespace sluice {

const char* version() noexcept {
  return SLUICE_VERSION;
}

const char* build_facts() {
  return SLUICE_COMPILER ", " SLUICE_BUILD_TYPE
#if SLUICE_HAS_URING
                         ", io_uring"
#else
                         ", no io_uring"
#endif
#if SLUICE_HAS_SIMD
                         ", SIMD kernels"
#else
                         ", scalar kernels only"
#endif
      ;
}

}  // namespace sluice
