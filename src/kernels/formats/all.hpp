#pragma once

// Every format of weights, one header each or one for a family that shares its code. A header has two parts:
//   - by itself it gives the block as it lies in files (struct BlockCode of types.def) and its scalar
//   decoding;
//   - behind SLUICE_VECTOR_FORMATS, which the files of one instruction set define once they have their vector
//     vocabulary, it gives struct Code: how rows become panels, what is special about the format's speed,
//     and, behind the macro of an instruction set, products that need no panels.

#include "kernels/formats/iq1.hpp"
#include "kernels/formats/iq2.hpp"
#include "kernels/formats/iq3.hpp"
#include "kernels/formats/iq4.hpp"
#include "kernels/formats/mxfp4.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/plain.hpp"
#include "kernels/formats/q1_0.hpp"
#include "kernels/formats/q2_0.hpp"
#include "kernels/formats/q2_k.hpp"
#include "kernels/formats/q3_k.hpp"
#include "kernels/formats/q4_0.hpp"
#include "kernels/formats/q4_k.hpp"
#include "kernels/formats/q5_0.hpp"
#include "kernels/formats/q6_k.hpp"
#include "kernels/formats/q8_0.hpp"
#include "kernels/formats/tq.hpp"
