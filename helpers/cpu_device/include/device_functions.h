// Nothing to add: every kernel sees cuda_device.h.
#pragma once
