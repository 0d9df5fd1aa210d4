BEGIN { FS = "," }
NR > 1 { sum[$1] += $2 }
END { for (shop in sum) print day "," shop "," sum[shop] }
