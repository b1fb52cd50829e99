// Thread blocks, tiles and active lanes; see groups.h.
#pragma once
namespace cooperative_groups { using namespace cuda_groups; }
