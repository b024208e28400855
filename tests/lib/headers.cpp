// SPDX-License-Identifier: MIT
// headers.cpp - the target that headers.hpp is compiled for must be a program.
int main()
{
	return 0;
}
