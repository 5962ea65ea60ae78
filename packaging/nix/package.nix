# SPDX-License-Identifier: Apache-2.0
{ lib, stdenv, fetchurl, cli11, libhwy, meson, ninja, nlohmann_json, pkg-config }:

stdenv.mkDerivation rec {
  pname = "rmsnorm";
  version = "@version@";
  src = fetchurl {
    url = "@url@";
    sha256 = "@sha256@";
  };
  nativeBuildInputs = [ meson ninja pkg-config ];
  buildInputs = [ cli11 libhwy nlohmann_json ];
  mesonFlags = [ "-Dopenmp=enabled" "-Dtools=enabled" "-Dbenchmarks=disabled" "-Dtests=disabled" ];
  doInstallCheck = stdenv.buildPlatform.canExecute stdenv.hostPlatform;
  installCheckPhase = "$out/bin/rmsnorm check --every 100";
  meta = {
    description = "RMSNorm for CPUs: fast, and the same bits everywhere";
    homepage = "@homepage@";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = "rmsnorm";
  };
}
