// Prints the fields of Pulsar's messages, and its enums, as JSON. The jar has no .proto file: the numbers, labels and
// types are read from the classes that LightProto has generated from it.

import java.io.File;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.jar.JarFile;
import org.apache.pulsar.common.api.proto.BaseCommand;

public class PublishedFields {
    private static final String PACKAGE = "org.apache.pulsar.common.api.proto.";
    private static final String NUMBER = "_FIELD_NUMBER";

    /** A field: its constants' prefix, its Java field, and its place in the message. */
    private record Entry(String constant, Field value, int place) {
        String name() {
            return constant.substring(1).toLowerCase();
        }
    }

    public static void main(String[] arguments) throws Exception {
        File jar = new File(BaseCommand.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        List<String> names = new ArrayList<>();
        try (JarFile file = new JarFile(jar)) {
            file.stream().map(entry -> entry.getName().replace('/', '.'))
                .filter(name -> name.startsWith(PACKAGE) && name.endsWith(".class"))
                .filter(name -> !name.contains("LightProtoCodec"))
                .forEach(name -> names.add(name.substring(0, name.length() - ".class".length())));
        }
        TreeMap<String, String> messages = new TreeMap<>();
        TreeMap<String, String> enums = new TreeMap<>();
        for (String name : names) {
            Class<?> type = Class.forName(name);
            if (type.isEnum()) {
                enums.put(shortName(type), constants(type));
            } else if (!type.isInterface()) {
                messages.put(shortName(type), fields(type));
            }
        }
        System.out.println("{\"messages\": " + object(messages) + ", \"enums\": " + object(enums) + "}");
    }

    private static String constants(Class<?> type) throws Exception {
        TreeMap<String, String> values = new TreeMap<>();
        for (Object constant : type.getEnumConstants()) {
            values.put(constant.toString(), type.getMethod("getValue").invoke(constant).toString());
        }
        return object(values);
    }

    private static String fields(Class<?> type) throws Exception {
        TreeMap<String, String> fields = new TreeMap<>();
        for (Entry entry : entries(type)) {
            int number = (int) constant(type, entry.constant() + NUMBER);
            String value = "[" + number + ", \"" + kind(type, entry) + "\", \"" + label(type, entry) + "\", "
                + defaultValue(type, entry) + "]";
            fields.put(entry.name(), value);
        }
        return object(fields);
    }

    /** Returns the fields in the order of the message; the constants of a field follow its value. */
    private static List<Entry> entries(Class<?> type) {
        List<Entry> entries = new ArrayList<>();
        Field value = null;
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) && !field.getName().startsWith("_")) {
                value = field;
            } else if (field.getName().endsWith(NUMBER)) {
                String name = field.getName();
                entries.add(new Entry(name.substring(0, name.length() - NUMBER.length()), value, entries.size()));
            }
        }
        return entries;
    }

    private static String label(Class<?> type, Entry entry) throws Exception {
        if (entry.value().getType().isArray()) {
            return "repeated";
        }
        Object required = constant(type, "_REQUIRED_FIELDS_MASK" + entry.place() / 32);
        int mask = (int) constant(type, entry.constant() + "_MASK");
        if (mask != 1 << entry.place() % 32) {
            throw new IllegalStateException(type + " " + entry + ": the masks are not in the order of the fields");
        }
        return required != null && ((int) required & mask) != 0 ? "required" : "optional";
    }

    private static String kind(Class<?> type, Entry entry) throws Exception {
        Class<?> java = entry.value().getType();
        Class<?> element = java.isArray() ? java.getComponentType() : java;
        // a varint is one of int32, uint32, …: the generated classes treat signed and unsigned ones in the same way
        boolean isVarint = ((int) constant(type, entry.constant() + "_TAG") & 7) == 0;
        return switch (element.getSimpleName()) {
            case "int" -> isVarint ? "int32" : "fixed32";
            case "long" -> isVarint ? "int64" : "fixed64";
            case "boolean" -> "bool";
            case "double", "float" -> element.getSimpleName();
            case "String", "StringHolder" -> "string";
            case "ByteBuf", "BytesHolder" -> "bytes";
            default -> shortName(element);
        };
    }

    /** Returns the default of a number, text or enum as JSON: what a message without it answers, null for an exception. */
    private static String defaultValue(Class<?> type, Entry entry) throws Exception {
        Class<?> java = entry.value().getType();
        if (java.isArray()) {
            return "null";
        }
        String get = (java == boolean.class ? "is" : "get") + camel(entry.constant());
        Object found;
        try {
            found = type.getMethod(get).invoke(type.getConstructor().newInstance());
        } catch (InvocationTargetException error) {
            return "null";
        }
        if (found instanceof Number || found instanceof Boolean) {
            return found.toString();
        }
        return found instanceof String || found instanceof Enum ? '"' + found.toString() + '"' : "null";
    }

    private static Object constant(Class<?> type, String name) throws Exception {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(null);
        } catch (NoSuchFieldException error) {
            return null;
        }
    }

    private static String camel(String constant) {
        StringBuilder made = new StringBuilder();
        for (String word : constant.substring(1).split("_")) {
            made.append(word.charAt(0)).append(word.substring(1).toLowerCase());
        }
        return made.toString();
    }

    private static String shortName(Class<?> type) {
        return type.getName().substring(PACKAGE.length()).replace('$', '.');
    }

    private static String object(TreeMap<String, String> members) {
        List<String> parts = new ArrayList<>();
        members.forEach((name, value) -> parts.add('"' + name + "\": " + value));
        return "{" + String.join(", ", parts) + "}";
    }
}
