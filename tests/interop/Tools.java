import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.tools.ToolProvider;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's command-line tools in one JVM, since each start of a JVM takes a second.
 *
 * A line on the standard input is a call: its number, the tool's class or source file, its standard input, its arguments;
 * all but the number in base64. A line on the standard output is a result: the call's number, the exit code, the output in
 * base64. A line of two numbers asks what the call of the second one has printed, and what all threads are doing. Calls run
 * concurrently, each with its own streams, and with its own classes, since tools keep state in static
 * fields. Argument: the jar of the tools, which must not be on the class path. */
public class Tools {
    /** Thrown where a tool would exit. Some tools catch it like any other error, so the exit code is recorded before. */
    static final class Exited extends RuntimeException { }

    static final class Call {
        final ByteArrayOutputStream output = new ByteArrayOutputStream();
        final InputStream typed;
        final List<Runnable> hooks = new ArrayList<>();
        Integer code;

        Call(byte[] typed) { this.typed = new ByteArrayInputStream(typed); }

        synchronized void exit(int code, String message) {
            if (this.code != null) return;
            if (message != null) System.err.println(message);
            this.code = code;
        }
    }

    static final InheritableThreadLocal<Call> call = new InheritableThreadLocal<>();
    static final PrintStream answers = System.out;
    static final Map<String, Call> running = new ConcurrentHashMap<>();

    static final class Printed extends OutputStream {
        @Override public void write(int b) { write(new byte[] {(byte) b}, 0, 1); }

        @Override public void write(byte[] bytes, int offset, int length) {
            Call own = call.get();
            if (own != null && own.code == null) own.output.write(bytes, offset, length);
        }
    }

    static final class Typed extends InputStream {
        @Override public int read() throws IOException { return call.get().typed.read(); }

        @Override public int read(byte[] bytes, int offset, int length) throws IOException {
            return call.get().typed.read(bytes, offset, length);
        }
    }

    public static void main(String[] arguments) throws Exception {
        URL[] tools = {new File(arguments[0]).toURI().toURL()};
        PrintStream printed = new PrintStream(new Printed(), true);
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in));
        System.setOut(printed);
        System.setErr(printed);
        System.setIn(new Typed());
        Exit.setExitProcedure((code, message) -> { call.get().exit(code, message); throw new Exited(); });
        Exit.setHaltProcedure((code, message) -> { call.get().exit(code, message); throw new Exited(); });
        Exit.setShutdownHookAdder((name, hook) -> call.get().hooks.add(hook)); // the console producer flushes in a shutdown hook
        for (String line; (line = calls.readLine()) != null; ) {
            String[] fields = line.split(" ", -1);
            if (fields.length == 2) {
                answer(fields[0], 0, describe(running.get(fields[1])));
                continue;
            }
            new Thread(() -> answer(fields, tools)).start();
        }
        System.exit(0);
    }

    static void answer(String[] fields, URL[] tools) {
        Call own = new Call(decoded(fields[2]));
        call.set(own);
        running.put(fields[0], own);
        String[] arguments = Arrays.stream(fields, 3, fields.length).map(each -> new String(decoded(each))).toArray(String[]::new);
        String program = new String(decoded(fields[1]));
        try (URLClassLoader loader = loader(tools, program)) {
            Thread.currentThread().setContextClassLoader(loader);
            program(loader, program).getMethod("main", String[].class).invoke(null, (Object) arguments);
            own.exit(0, null);
        } catch (Throwable thrown) {
            if (own.code == null) thrown.printStackTrace();
            own.exit(1, null);
        }
        own.hooks.forEach(Runnable::run);
        running.remove(fields[0]);
        answer(fields[0], own.code, own.output.toByteArray());
    }

    static void answer(String number, int code, byte[] text) {
        synchronized (answers) {
            answers.println(number + " " + code + " " + Base64.getEncoder().encodeToString(text));
            answers.flush();
        }
    }

    static byte[] describe(Call asked) {
        StringBuilder text = new StringBuilder(asked == null ? "" : asked.output.toString());
        Thread.getAllStackTraces().forEach((thread, places) -> {
            text.append("\n").append(thread);
            for (StackTraceElement place : places) text.append("\n    at ").append(place);
        });
        return text.toString().getBytes();
    }

    /** For a source file, the loader also contains its compiled classes. */
    static URLClassLoader loader(URL[] tools, String program) throws Exception {
        if (!program.endsWith(".java")) return new URLClassLoader(tools);
        Path classes = Files.createTempDirectory("classes");
        String[] compile = {"-proc:none", "-d", classes.toString(), "-cp", System.getProperty("java.class.path"), program};
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        if (ToolProvider.getSystemJavaCompiler().run(null, errors, errors, compile) != 0)
            throw new IllegalArgumentException(errors.toString());
        call.get().hooks.add(() -> remove(classes.toFile()));
        return new URLClassLoader(new URL[] {classes.toUri().toURL(), tools[0]});
    }

    static void remove(File directory) {
        for (File each : directory.listFiles()) each.delete();
        directory.delete();
    }

    static Class<?> program(URLClassLoader loader, String program) throws ClassNotFoundException {
        return loader.loadClass(program.endsWith(".java") ? new File(program).getName().replace(".java", "") : program);
    }

    static byte[] decoded(String text) {
        return Base64.getDecoder().decode(text);
    }
}
