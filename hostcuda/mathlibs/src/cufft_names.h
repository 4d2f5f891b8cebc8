// Written by list_names.py. clang-format off
#pragma once
STAND_IN_SUCCEEDS(cufftDestroy)
STAND_IN_SUCCEEDS(cufftSetAutoAllocation)
STAND_IN_SUCCEEDS(cufftSetStream)
STAND_IN_SUCCEEDS(cufftSetWorkArea)
STAND_IN_SUCCEEDS(cufftXtExec)
