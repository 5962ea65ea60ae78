// SPDX-License-Identifier: Apache-2.0
// Stands for PyTorch's library while the operators are linked, and is empty.
