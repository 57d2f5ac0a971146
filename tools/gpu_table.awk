# gpu_table.awk: gpu.csv as a table for people, beside goals and llama.cpp's figures for an H100
# (bench/device/card/h100.csv).
BEGIN { FS = "," }
/^# card:/ && FNR != NR && !/H100/ { note = "# goals and llama.cpp's figures are for an H100, which this is not" }
/^#/ { if (FNR != NR) print; next }
FNR == NR { key = $1 "," $2; goal[key] = $4; peer[key] = $5; next }
$1 == "part" {
  if (note != "") print note
  printf "\n%-8s %-44s %12s %-8s %7s %8s %8s %10s %6s  %s\n", "part", "what", "value", "", "spread", "of limit",
    "goal", "llama.cpp", "ratio", "asserted"
  next
}
{
  key = $1 "," $2
  share = $4 != "" && $6 + 0 > 0 && $3 ~ /GB/ ? sprintf("%.0f%%", 100 * $4 / $6) : ""
  ratio = $4 != "" && peer[key] != "" ? sprintf("%.2fx", $4 / peer[key]) : ""
  printf "%-8s %-44s %12s %-8s %7s %8s %8s %10s %6s  %s\n", $1, $2, $4, $3, $5, share, goal[key], peer[key], ratio, $7
  if ($7 ~ /^FAILED/) failed++
  else if ($7 ~ /^ok/) held++
  else out++
}
END { printf "\n%d held, %d failed, %d left out\n", held, failed, out }
