package io.confluent.parallelconsumer.offsets;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.SortedSet;
import java.util.TreeSet;

/**
 * Prints the length of the metadata that confluent's parallel-consumer commits for each line of the input: the offset after
 * the last acknowledged one, and those below it that are not acknowledged. The base is 0. In the encoder's package: parts of
 * it are not public.
 */
public final class OffsetMapSizes {
    public static void main(String[] arguments) throws IOException, NoEncodingPossibleException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            SortedSet<Long> incomplete = new TreeSet<>();
            for (int i = 1; i < words.length; i++) {
                incomplete.add(Long.parseLong(words[i]));
            }
            byte[] encoded = new OffsetSimultaneousEncoder(0, Long.parseLong(words[0]) - 1, incomplete).invoke().packSmallest();
            System.out.println(OffsetSimpleSerialisation.base64(encoded).length());
        }
    }
}
