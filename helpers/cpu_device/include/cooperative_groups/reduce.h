// cg::reduce; see groups.h.
#pragma once
#include <cooperative_groups.h>
