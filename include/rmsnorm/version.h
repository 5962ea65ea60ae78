// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_VERSION_H_
#define RMSNORM_VERSION_H_

/// The version of these headers. rmsnorm_version() returns the version of the linked library.
#define RMSNORM_VERSION "0.1.0"
#define RMSNORM_VERSION_MAJOR 0
#define RMSNORM_VERSION_MINOR 1
#define RMSNORM_VERSION_PATCH 0

#endif  // RMSNORM_VERSION_H_
