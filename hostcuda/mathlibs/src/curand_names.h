// Written by list_names.py. clang-format off
#pragma once
