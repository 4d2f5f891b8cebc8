// Written by list_names.py. clang-format off
#pragma once
STAND_IN_REFUSES(cuFileBufDeregister)
STAND_IN_REFUSES(cuFileBufRegister)
STAND_IN_REFUSES(cuFileHandleDeregister)
STAND_IN_REFUSES(cuFileHandleRegister)
STAND_IN_REFUSES(cuFileRead)
STAND_IN_REFUSES(cuFileWrite)
