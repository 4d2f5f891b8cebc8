// Written by list_names.py. clang-format off
#pragma once
STAND_IN_REFUSES(curandGetDirectionVectors32)
STAND_IN_REFUSES(curandGetDirectionVectors64)
STAND_IN_REFUSES(curandGetScrambleConstants32)
STAND_IN_REFUSES(curandGetScrambleConstants64)
STAND_IN_REFUSES(curandGetVersion)
